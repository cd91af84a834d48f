"""Arrays of strings. Each string is a 64-bit length, then bytes, so the end must be searched."""

import struct

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

LENGTH_SIZE = 8
_length = struct.Struct("<Q").unpack_from


def end_of_strings(memory: Bytes, start: int, count: int) -> int:
    """Return the offset of the end of `count` strings that begin at `start`.

    The result may be past the end of `memory`, because the last length is not checked. Raises
    struct.error or OverflowError if a length itself lies outside `memory`.
    """
    buffer, end = memory.data, start
    for _ in range(count):
        end += LENGTH_SIZE + _length(buffer, end)[0]
    return end


def decode_strings(memory: Bytes, start: int, end: int, count: int) -> list[str]:
    """Decode the `count` strings between `start` and `end`."""
    data = memory[start:end].tobytes()
    strings: list[str] = []
    last = 0
    for _ in range(count):
        first = last + LENGTH_SIZE
        last = first + _length(data, last)[0]
        strings.append(data[first:last].decode("utf-8", "surrogateescape"))
    return strings
