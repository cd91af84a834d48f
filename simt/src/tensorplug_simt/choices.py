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

        Of two processes that write at once, one's choice may be lost and timed again later. Where
        nothing can be written, choices hold for this process.
        """
        self._write({**self.read(), **choices})

    def forget(self, kind: str) -> None:
        """Take the choice for a class out again."""
        self._write({known: choice for known, choice in self.read().items() if known != kind})

    def _write(self, choices: Mapping[str, str]) -> None:
        content = {"for": dict(self.identity), "choices": dict(choices)}
        with suppress(OSError):
            write_whole(self.path, json.dumps(content, indent=1, sort_keys=True).encode())


def texts_id(names: Iterable[str]) -> str:
    """A short name for texts of kernels (`package:path`): another one after every change."""
    texts = "".join(read_resource(name) for name in names)
    return hashlib.sha256(texts.encode()).hexdigest()[:16]
