"""`StreamDecoder`: text of tokens that come one by one, up to a stop string."""

import codecs
from collections.abc import Container, Sequence
from typing import Protocol


class Decodable(Protocol):
    """What a stream needs of a tokenizer."""

    def piece(self, id: int) -> bytes: ...
    def is_silent(self, id: int) -> bool: ...


class StreamDecoder:
    """Writes tokens as soon as their bytes make whole characters, and never half of one.

    The text ends before the stop string that is complete first, wherever the borders of tokens
    are. Text that may be the beginning of a stop string is held back until that is decided.
    """

    def __init__(
        self,
        tokenizer: Decodable,
        *,
        special: bool = False,
        stop: Sequence[str] = (),
        shown: Container[int] = (),
    ) -> None:
        """Control tokens are written with `special`, and those that are `shown`."""
        self.stopped: str | None = None
        """The stop string that ended the text."""
        self._tokenizer = tokenizer
        self._special = special
        self._shown = shown
        self._stop = tuple(stop)
        self._held = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, id: int) -> str:
        """Return the characters that this token completes, often none."""
        if self.stopped or not (
            self._special or not self._tokenizer.is_silent(id) or id in self._shown
        ):
            return ""
        return self._released(self._decoder.decode(self._tokenizer.piece(id)))

    def finish(self) -> str:
        """Return what was held back, incomplete characters as U+FFFD; the next text can begin."""
        rest = self._decoder.decode(b"", final=True)
        rest = "" if self.stopped else self._released(rest) + self._held
        self.stopped, self._held = None, ""
        self._decoder.reset()
        return rest

    def _released(self, text: str) -> str:
        """What can be shown now that this text follows."""
        if not self._stop:
            return text
        text = self._held + text
        found = [(text.find(stop) + len(stop), stop) for stop in self._stop if stop in text]
        if found:
            # The first that is complete; the longest of those that end there.
            end, stop = min(found, key=lambda place: (place[0], -len(place[1])))
            self.stopped, self._held = stop, ""
            return text[: end - len(stop)]
        kept = max(overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


def overlap(text: str, stop: str) -> int:
    """Characters at the end of a text that a stop string begins with, less than all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
