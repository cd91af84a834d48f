"""Which bytes launches touch: they decide about the order where launches may run side by side."""

from collections.abc import Iterator

from tensorplug.device.ranges import Range
from tensorplug_simt.merging import Placed


def ranges(placed: Placed) -> Iterator[tuple[Range, bool]]:
    """The bytes that a launch touches, and whether it writes them.

    Scratch memory and bytes before first elements are among them.
    """
    written, spans = placed.spans
    for i, (memory, (first, end)) in enumerate(spans):
        if first < end:
            yield Range(memory, first, end), i in written
