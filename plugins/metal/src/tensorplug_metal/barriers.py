"""Where launches that may run at the same time need a barrier between them."""

from collections.abc import Iterable, Sequence

from tensorplug.device import Buffer
from tensorplug.device.ranges import Host, Range
from tensorplug.planning.footprints import Footprints
from tensorplug_simt.merging import Home, Placed
from tensorplug_simt.ranges import ranges


def barriers(launches: Iterable[Sequence[Placed]]) -> list[bool]:
    """For each launch, merged or not, whether all earlier ones must be done before it starts.

    A launch joins those since the last barrier unless one of them writes what it reads or writes,
    or reads what it writes. What `concurrency.placed` says of nodes, this says of their launches.
    """
    found: list[bool] = []
    trail = Footprints(max)
    for parts in launches:
        wanted = [touch for part in parts for touch in ranges(part)]
        waits = any(trail.clashes(span, writes=writes) for span, writes in wanted)
        if waits:
            trail.clear()
        for span, writes in wanted:
            trail.add(span, 0, writes=writes)
        found.append(waits)
    return found


def home_of(buffer: Buffer) -> Home:
    """A buffer by itself; by addresses where the host sees it, since two buffers may lie over the
    same memory."""
    return (Host.MEMORY, int(buffer.host().ctypes.data)) if buffer.type.is_host else (buffer, 0)


def bytes_of(buffer: Buffer, first: int, end: int) -> Range:
    """Bytes of a buffer."""
    memory, start = home_of(buffer)
    return Range(memory, start + first, start + end)
