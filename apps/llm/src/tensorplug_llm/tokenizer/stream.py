"""`StreamDecoder`: text of tokens that come one by one."""

import codecs
from typing import Protocol


class Decodable(Protocol):
    """What a stream needs of a tokenizer."""

    def piece(self, id: int) -> bytes: ...
    def is_silent(self, id: int) -> bool: ...


class StreamDecoder:
    """Writes tokens as soon as their bytes make whole characters, and never half of one."""

    def __init__(self, tokenizer: Decodable, *, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, id: int) -> str:
        """Return the characters that this token completes, often none."""
        if not self._special and self._tokenizer.is_silent(id):
            return ""
        return self._decoder.decode(self._tokenizer.piece(id))

    def finish(self) -> str:
        """Return what was held back, as U+FFFD, and begin anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
