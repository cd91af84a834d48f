"""Choices on disk: which ways to compute were found to be fast, for one device and its kernels."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

from tensorplug.system.cache import Cache
from tensorplug_simt.dialects.dialect import read_resource


@dataclass(frozen=True, slots=True)
class ChoiceFile:
    """A file of a cache with choices that hold for `identity` only.

    One that cannot be read, or is about something else, counts as empty.
    """

    cache: Cache
    identity: Mapping[str, str]

    @property
    def name(self) -> str:
        """Its name in the cache."""
        name = hashlib.sha256(json.dumps(dict(self.identity)).encode()).hexdigest()[:16]
        return f"choices-{name}.json"

    def read(self) -> Mapping[str, str]:
        """The choices of earlier processes; none where there is no sound file."""
        with suppress(ValueError):
            found = json.loads(self.cache.read(self.name) or b"")
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
        self.cache.write(self.name, json.dumps(content, indent=1, sort_keys=True).encode())

    def begin(self, kind: str) -> bool:
        """Mark that a class is being tried; False where it is marked already.

        Then another process tries it, or it took one along. The mark is a file of its own, so that
        no other writer loses it. Where nothing can be written, there are no marks.
        """
        return self.cache.mark(self._mark(kind))

    def end(self, kind: str) -> None:
        """Take the mark of a class away."""
        self.cache.forget(self._mark(kind))

    def _mark(self, kind: str) -> str:
        name = hashlib.sha256(kind.encode()).hexdigest()[:16]
        return f"{self.name.removesuffix('.json')}-tried-{name}.json"


def texts_id(names: Iterable[str]) -> str:
    """A short name for texts of kernels (`package:path`): another one after every change."""
    texts = "".join(read_resource(name) for name in names)
    return hashlib.sha256(texts.encode()).hexdigest()[:16]
