"""Where launches that may run at the same time need a barrier between them."""

from collections.abc import Iterable, Sequence

from tensorplug.device import Buffer
from tensorplug.device.ranges import Host, Range
from tensorplug.planning.stages import barriers_of
from tensorplug_simt.merging import Home, Placed


def barriers(launches: Iterable[Sequence[Placed]]) -> list[bool]:
    """For each launch, merged or not, whether all earlier ones must be done before it starts.

    `barriers_of` of core compares the bytes that launches read and write.
    """
    return barriers_of([touch for part in parts for touch in part.touched] for parts in launches)


def home_of(buffer: Buffer) -> Home:
    """A buffer by itself; by addresses where the host sees it, since two buffers may lie over the
    same memory."""
    return (Host.MEMORY, int(buffer.host().ctypes.data)) if buffer.type.is_host else (buffer, 0)


def bytes_of(buffer: Buffer, first: int, end: int) -> Range:
    """Bytes of a buffer."""
    memory, start = home_of(buffer)
    return Range(memory, start + first, start + end)
