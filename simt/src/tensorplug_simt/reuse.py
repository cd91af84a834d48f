"""Leaves out launches whose result an equal launch has left in scratch memory.

Several products with the same rows each round these rows first. The rounded rows of the first one
serve the others until these rows, or the rows that they were made from, are overwritten.
"""

from collections.abc import Iterable, Sequence

from tensorplug_simt.merging import Placed

FARTHEST = 32
"""How many launches back an equal one may be: all of these are checked, which takes time."""

Key = tuple[object, ...]
"""Equal for two launches that compute the same result from the same bytes."""


def reusing(programs: Iterable[Sequence[Placed]]) -> list[Placed]:
    """The launches of `programs`, in their order, without those whose result is there already.

    A program is all launches of one node or group: no other program reads its scratch memory. Where
    a launch is left out, the rest of its program reads the result of the earlier equal one. Nothing
    except these launches may write the memory that they touch, as in a plan.
    """
    kept: list[Placed] = []
    last: dict[Key, int] = {}
    for program in programs:
        rest = list(program)
        while rest:
            launch = rest.pop(0)
            if _is_reusable(launch):
                key = _key(launch)
                at = last.get(key, len(kept))
                moved = None
                near = 0 < len(kept) - at <= FARTHEST
                if near and _is_whole((*kept[at:], *rest)):
                    moved = _moved(rest, launch, kept[at])
                if moved is not None:
                    rest = moved
                    continue
                last[key] = len(kept)
            kept.append(launch)
    return kept


def _is_reusable(placed: Placed) -> bool:
    """Whether a launch may be left out: its kernel says so, and all that it writes is scratch."""
    kernel, regions = placed.launch.kernel, placed.launch.regions
    return kernel.reusable and all(regions[name].tensor is None for name in kernel.writes)


def _key(placed: Placed) -> Key:
    launch = placed.launch
    pairs = zip(launch.regions.values(), placed.ranges, strict=True)
    places = tuple(
        (region.ne, region.nb, None if i in placed.written else (id(at.buffer), at.start, at.end))
        for i, (region, at) in enumerate(pairs)
    )
    numbers = tuple(launch.numbers.items())
    return (id(launch.kernel), launch.variant, numbers, launch.groups, launch.local, places)


def _is_whole(launches: Sequence[Placed]) -> bool:
    """Whether the result of the first launch is intact: it does not write what it reads, and none
    of the others, up to the end of a program, writes what it touched."""
    made, *since = launches
    # Where something was overwritten, one of the last launches usually did it.
    return not (_is_in_place(made) or any(each.writes_into(made) for each in reversed(since)))


def _is_in_place(placed: Placed) -> bool:
    return any(
        placed.ranges[i].overlaps(range_)
        for range_, writes in placed.touched
        if not writes
        for i in placed.written
    )


def _moved(rest: Sequence[Placed], gone: Placed, made: Placed) -> list[Placed] | None:
    """The rest of a program, reading what `made` wrote in place of what `gone` would have written.

    None where one of them writes that memory, or reads more than it.
    """
    found = []
    for placed in rest:
        buffers, offsets, homes = list(placed.buffers), list(placed.offsets), list(placed.homes)
        for i, range_ in enumerate(placed.ranges):
            for j in gone.written:
                result = gone.ranges[j]
                if not range_.overlaps(result):
                    continue
                if i in placed.written or range_.start < result.start or result.end < range_.end:
                    return None
                buffers[i] = made.buffers[j]
                offsets[i] += made.offsets[j] - gone.offsets[j]
                homes[i : i + 1] = made.homes[j : j + 1]
        found.append(Placed(placed.launch, tuple(buffers), tuple(offsets), tuple(homes)))
    return found
