"""Which bytes launches touch: they decide about the order where launches may run side by side."""

from collections.abc import Callable, Iterator

from tensorplug.buffer import Buffer
from tensorplug.hazards import Range
from tensorplug_simt.merging import Placed

BytesOf = Callable[[Buffer, int, int], Range]
"""Bytes of a buffer, from the first to the end: the same for two buffers over the same memory."""


def ranges(placed: Placed, bytes_of: BytesOf) -> Iterator[tuple[Range, bool]]:
    """The bytes that a launch touches, and whether it writes them.

    Scratch memory and bytes before first elements are among them.
    """
    written, spans = placed.spans
    for i, (buffer, (_, (first, end))) in enumerate(zip(placed.buffers, spans, strict=True)):
        if first < end:
            yield bytes_of(buffer, first, end), i in written
