"""Arrays of strings: each is a 64-bit length, then its bytes, so the end is found by walking."""

import struct

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

LENGTH_SIZE = 8
_length = struct.Struct("<Q").unpack_from

# Walking 262,144 strings takes 18 ms one by one and 4 ms in leaps.
_WINDOW = 1 << 16
_WORTH_LEAPING = 1000
_STEPS_AFTER_A_LEAP = 64
_STEPS_AFTER_A_STUMBLE = 4096


def end_of_strings(memory: Bytes, start: int, count: int) -> int:
    """Return the offset behind `count` strings that begin at `start`.

    The end may lie past the end of `memory`: the last length is not checked. Raises struct.error or
    OverflowError where a length itself lies outside.
    """
    buffer = memory.data
    offset, left = start, count
    while left:
        leapt = 0
        if left >= _WORTH_LEAPING:
            leapt, offset = _leap(memory, offset, left)
            left -= leapt
        # A file made of strings that stop every leap must not cost a leap for each of them.
        stumbled = leapt < _WORTH_LEAPING // 2
        steps = min(left, _STEPS_AFTER_A_STUMBLE if stumbled else _STEPS_AFTER_A_LEAP)
        for _ in range(steps):
            offset += LENGTH_SIZE + _length(buffer, offset)[0]
        left -= steps
    return offset


def _leap(memory: Bytes, offset: int, most: int) -> tuple[int, int]:
    """Step over up to `most` strings shorter than 256 bytes; return how many, and the new offset.

    A byte that seven zero bytes follow may be the length of a short string. It is one where the
    places found form a chain: each points to the next.
    """
    window = memory[offset : offset + _WINDOW]
    zero = window == 0
    two = zero[1:-1] & zero[2:]
    four = two[:-2] & two[2:]
    seven = four[:-3] & four[3:]
    places = np.flatnonzero(seven)
    if not places.size or places[0]:
        return 0, offset
    targets = places + window[places] + LENGTH_SIZE
    breaks = np.flatnonzero(targets[:-1] != places[1:])
    links = int(breaks[0]) if breaks.size else places.size - 1
    links = min(links, most)
    return links, offset + int(places[links])


def decode_strings(memory: Bytes, start: int, end: int, count: int) -> list[str]:
    """Decode the `count` strings between `start` and `end`."""
    data = memory[start:end].tobytes()
    strings = []
    offset = 0
    for _ in range(count):
        first = offset + LENGTH_SIZE
        offset = first + _length(data, offset)[0]
        strings.append(str(data[first:offset], "utf-8", "surrogateescape"))
    return strings
