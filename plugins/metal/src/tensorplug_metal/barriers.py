"""Where launches that may run at the same time need a barrier between them."""

from collections.abc import Iterable, Sequence

from tensorplug.buffer import Buffer
from tensorplug.footprints import Footprints
from tensorplug.hazards import Access, Host, Range
from tensorplug_simt.merging import Placed


def barriers(launches: Iterable[Sequence[Placed]]) -> list[bool]:
    """For each launch, merged or not, whether all earlier ones must be done before it starts.

    A launch joins those since the last barrier unless one of them writes what it reads or writes,
    or reads what it writes. What `concurrency.placed` says of nodes, this says of their launches.
    """
    found: list[bool] = []
    trail = Footprints(max)
    for parts in launches:
        wanted = [access for part in parts for access in accesses(part)]
        waits = any(trail.clashes(access.range, writes=access.writes) for access in wanted)
        if waits:
            trail.clear()
        for access in wanted:
            trail.add(access.range, 0, writes=access.writes)
        found.append(waits)
    return found


def accesses(placed: Placed) -> list[Access]:
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


def bytes_of(buffer: Buffer, first: int, end: int) -> Range:
    """Bytes of a buffer; by their addresses where the host sees them, since two buffers may lie
    over the same memory."""
    if not buffer.type.is_host:
        return Range(buffer, first, end)
    start = int(buffer.host().ctypes.data)
    return Range(Host.MEMORY, start + first, start + end)
