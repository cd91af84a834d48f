"""`Cursor`: reads a mapped file from start to end, checking every size against the file's end."""

import struct

from tensorplug.errors import FormatError
from tensorplug.gguf.strings import LENGTH_SIZE, Bytes, end_of_strings

FETCH_AGAIN = "the file is truncated or damaged: fetch it again"
CONVERT_AGAIN = "convert the model again"
UPDATE = "use a newer tensorplug, or fetch the file again if it is damaged"

MAX_NAME = 0xFFFF
"""The most bytes of a key, a limit of the format."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class BeginningTooShort(Exception):
    """Only the beginning of a file is in memory, and the parser needs bytes that follow it."""


class Cursor:
    """A position in a file. Reading beyond the end raises FormatError; `what` names the data."""

    def __init__(self, memory: Bytes, path: str, size: int | None = None) -> None:
        """`size` is the size of the file where `memory` holds only its beginning.

        Reading beyond that beginning raises BeginningTooShort.
        """
        self.memory = memory
        self.path = path
        self.size = memory.size if size is None else size
        """Bytes of the file."""
        self.offset = 0

    @property
    def left(self) -> int:
        """Bytes from the cursor to the end of the file."""
        return self.size - self.offset

    def error(self, what: str, remedy: str = FETCH_AGAIN) -> FormatError:
        """Return a FormatError that names the file; the caller raises it."""
        return FormatError(f"{self.path}: {what}; {remedy}")

    def check(self, needed: int, what: str) -> None:
        """Raise FormatError unless `needed` bytes are left."""
        if needed > self.left:
            raise self.error(
                f"{what} at offset {self.offset} needs {needed} bytes, and {self.left} are left"
            )
        if self.offset + needed > self.memory.size:
            raise BeginningTooShort

    def skip(self, size: int, what: str) -> int:
        """Skip `size` bytes; return the offset of the first."""
        self.check(size, what)
        start = self.offset
        self.offset += size
        return start

    def take(self, size: int, what: str) -> bytes:
        """Read `size` bytes."""
        start = self.skip(size, what)
        return self.memory[start : self.offset].tobytes()

    def u32(self, what: str) -> int:
        """Read a 32-bit count or id."""
        return int(_U32.unpack(self.take(_U32.size, what))[0])

    def u64(self, what: str) -> int:
        """Read a 64-bit size."""
        return int(_U64.unpack(self.take(_U64.size, what))[0])

    def string(self, what: str) -> str:
        """Read a string; invalid UTF-8 becomes surrogates (error handler `surrogateescape`)."""
        return self._string_bytes(what).decode("utf-8", "surrogateescape")

    def name(self, what: str) -> str:
        """Read a key or a tensor's name: valid UTF-8 of at most MAX_NAME bytes."""
        raw = self._string_bytes(what, most=MAX_NAME)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8: {quote(raw)}") from error

    def skip_strings(self, count: int, what: str) -> int:
        """Skip `count` strings without decoding them; return the offset of the first."""
        self.check(count * LENGTH_SIZE, what)
        start = self.offset
        too_long = self.error(
            f"{what} at offset {start}: its {count} strings need more than the {self.left} bytes "
            "that are left"
        )
        try:
            end = end_of_strings(self.memory, start, count)
        except (struct.error, OverflowError):
            if self.memory.size < self.size:
                raise BeginningTooShort from None
            raise too_long from None
        if end > self.size:
            raise too_long
        if end > self.memory.size:
            raise BeginningTooShort
        self.offset = end
        return start

    def _string_bytes(self, what: str, most: int | None = None) -> bytes:
        length = self.u64(f"the length of {what}")
        if most is not None and length > most:
            raise self.error(f"{what} is {length} bytes long, and at most {most} are allowed")
        return self.take(length, what)


def quote(value: object) -> str:
    """The repr of a name or value for an error text, cut after about 80 characters."""
    long = isinstance(value, str | bytes) and len(value) > 80
    text = repr(value[:80]) if isinstance(value, str | bytes) else repr(value)
    return f"{text[:80]}..." if long or len(text) > 90 else text
