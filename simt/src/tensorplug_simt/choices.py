"""Choices on disk: which ways to compute were found to be fast, for one device and its kernels."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tensorplug_simt.cache import write_whole
from tensorplug_simt.dialects.dialect import read_resource


@dataclass(frozen=True, slots=True)
class ChoiceFile:
    """A file in `folder` with choices that are true for `identity` alone.

    One that cannot be read, or is about something else, counts as empty.
    """

    folder: Path
    identity: Mapping[str, str]

    @property
    def path(self) -> Path:
        """Where it lies."""
        name = hashlib.sha256(json.dumps(dict(self.identity)).encode()).hexdigest()[:16]
        return self.folder / f"choices-{name}.json"

    def read(self) -> Mapping[str, str]:
        """The choices of earlier processes; none where there is no sound file."""
        with suppress(OSError, ValueError):
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if isinstance(found, dict) and found.get("for") == self.identity:
                choices = found.get("choices")
                if isinstance(choices, dict) and all(isinstance(v, str) for v in choices.values()):
                    return MappingProxyType(choices)
        return MappingProxyType({})

    def add(self, choices: Mapping[str, str]) -> None:
        """Add choices. The file changes as a whole, so that readers never see half of it.

        Of two processes that write at once, one's choice may be lost; a later process times it
        again. Where nothing can be written, choices hold for this process.
        """
        content = {"for": dict(self.identity), "choices": {**self.read(), **choices}}
        with suppress(OSError):
            write_whole(self.path, json.dumps(content, indent=1, sort_keys=True).encode())

    def begin(self, kind: str) -> bool:
        """Mark that a class is being tried; False where it is marked already.

        Then another process tries it, or it took one along. The mark is a file of its own, so that
        no other writer loses it. Where nothing can be written, there are no marks.
        """
        mark = self._mark(kind)
        with suppress(OSError):
            mark.parent.mkdir(parents=True, exist_ok=True)
        try:
            with mark.open("x", encoding="utf-8") as new:
                new.write(kind)
        except FileExistsError:
            return False
        except OSError:
            pass
        return True

    def end(self, kind: str) -> None:
        """Take the mark of a class away."""
        with suppress(OSError):
            self._mark(kind).unlink()

    def _mark(self, kind: str) -> Path:
        name = hashlib.sha256(kind.encode()).hexdigest()[:16]
        return self.folder / f"{self.path.stem}-tried-{name}.json"


def texts_id(names: Iterable[str]) -> str:
    """A short name for texts of kernels (`package:path`): another one after every change."""
    texts = "".join(read_resource(name) for name in names)
    return hashlib.sha256(texts.encode()).hexdigest()[:16]
