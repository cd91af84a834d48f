"""`tensorplug new-backend`: writes a complete distribution from the template."""

import re
import shlex
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from tensorplug.errors import OptionError
from tensorplug.registry.spec import HINTS, is_backend_name

MOST_NAME = 60
"""Characters of a name, which names of files and classes repeat."""
PACKAGES = ("emulator", "llm", "simt", "testing")
"""Names of packages `tensorplug_NAME` with something other than a backend."""
SUFFIX = ".txt"
"""The suffix of template files: with it they are data of this package, not modules."""


@dataclass(frozen=True, slots=True)
class Scaffold:
    """The report of a distribution that was written."""

    name: str
    folder: Path
    written: tuple[Path, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as a dictionary."""
        return {
            "name": self.name,
            "folder": str(self.folder),
            "written": [path.relative_to(self.folder).as_posix() for path in self.written],
        }

    @property
    def _requirement(self) -> str:
        """The folder as an argument of pip, which would read a bare word as a project name."""
        folder = self.folder.as_posix()
        return shlex.quote(folder if self.folder.is_absolute() else f"./{folder}")

    def __str__(self) -> str:
        lines = [f"  {path.relative_to(self.folder).as_posix()}" for path in self.written]
        return "\n".join(
            [
                f"wrote {self.folder}:",
                *lines,
                "",
                f"pip install 'tensorplug[testing]' --editable {self._requirement}"
                f" && tensorplug test --device {self.name} --tier smoke",
            ]
        )


def scaffold(name: str, folder: Path | None = None, *, template: str = "template") -> Scaffold:
    """Write the distribution `tensorplug-NAME` into a new folder. Raises OptionError.

    `template` is a folder of this package: `template`, or `template_simt` for a SIMT device.
    """
    if not re.fullmatch("[a-z]([a-z0-9_]*[a-z0-9])?", name) or len(name) > MOST_NAME:
        raise OptionError(
            f"new-backend: the name {name!r} must be up to {MOST_NAME} lower-case letters, digits "
            "and underscores, a letter first and no underscore last"
        )
    if not is_backend_name(name):
        raise OptionError(
            f"new-backend: {name} has a meaning in device strings; choose another name"
        )
    if name in PACKAGES:
        raise OptionError(
            f"new-backend: tensorplug-{name} is a distribution that exists; choose another name"
        )
    if name in HINTS:
        raise OptionError(
            f"new-backend: {name} is a backend that exists ({HINTS[name]}); choose another name"
        )
    place = folder if folder is not None else Path(f"tensorplug-{name}")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise OptionError(
            f"new-backend: {place} exists and is not an empty folder; choose another --into"
        )
    written = [
        _write(source, _renamed(path, name), place, name)
        for path, source in sorted(_walk(files("tensorplug.cli") / template))
    ]
    return Scaffold(name, place, tuple(written))


def _walk(folder: Traversable, prefix: str = "") -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for entry in folder.iterdir():
        path = f"{prefix}{entry.name}"
        if entry.is_dir():
            found += _walk(entry, f"{path}/")
        elif path.endswith(SUFFIX):
            found.append((path.removesuffix(SUFFIX), entry))
    return found


def _write(source: Traversable, path: str, folder: Path, name: str) -> Path:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(_renamed(source.read_text(encoding="utf-8"), name), encoding="utf-8")
    return target


def _renamed(text: str, name: str) -> str:
    title = "".join(word.capitalize() for word in name.split("_"))
    return text.replace("Template", title).replace("template", name)
