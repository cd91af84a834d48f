"""Which bytes launches read and write: what their order is decided by, on devices without one."""

from collections.abc import Callable

from tensorplug.buffer import Buffer
from tensorplug.hazards import Access, Range
from tensorplug_simt.merging import Placed

BytesOf = Callable[[Buffer, int, int], Range]
"""Bytes of a buffer, from the first to the end: the same for two buffers over the same memory."""


def accesses(placed: Placed, bytes_of: BytesOf) -> list[Access]:
    """What a launch reads and writes: scratch memory and bytes before first elements included."""
    kernel, regions = placed.launch.kernel, placed.launch.regions
    places = zip(regions.items(), placed.buffers, placed.offsets, strict=True)
    return [
        Access(
            bytes_of(buffer, at + region.span[0], at + region.span[1]),
            "scratch memory" if region.tensor is None else str(region.tensor),
            kernel.name,
            writes=name in kernel.writes,
        )
        for (name, region), buffer, at in places
        if region.span[0] < region.span[1]
    ]
