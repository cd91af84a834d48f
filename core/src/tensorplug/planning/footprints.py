"""`Footprints`: remembers byte ranges and the work that accessed them, to find dependencies."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from tensorplug.device.ranges import AddressSpace, Range

MANY = 32
"""The most accesses that one patch keeps apart; beyond it, they are merged into one."""

Join = Callable[[Sequence[int]], int]
"""Returns one number that stands for several pieces of work."""


class Print(NamedTuple):
    """One access: `who` is the number of the piece of work that read or wrote `range`."""

    range: Range
    who: int
    writes: bool


@dataclass(slots=True)
class _Patch:
    """A contiguous range of bytes, and the accesses to them."""

    start: int
    end: int
    prints: list[Print]


_START = attrgetter("start")


class Footprints:
    """The latest accesses to memory; an access is forgotten once later writes cover its bytes.

    `clashes` and `add` take nearly constant time. More than MANY accesses to the same patch of
    bytes are merged: `join` makes one number of theirs, which then counts as an access to the whole
    patch. So `clashes` may report a dependency that does not exist, but never misses one.
    """

    def __init__(self, join: Join) -> None:
        self._join = join
        self._patches: dict[AddressSpace, list[_Patch]] = {}

    def clashes(self, span: Range, *, writes: bool) -> list[int]:
        """Numbers of the work that must be complete before `span` is accessed.

        A read waits for writers, a write for readers too. A number may appear several times.
        """
        return [
            found.who
            for patch in self._met(span)
            for found in patch.prints
            if (writes or found.writes) and found.range.overlaps(span)
        ]

    def add(self, span: Range, who: int, *, writes: bool) -> None:
        """Remember that the piece of work `who` reads or writes `span`."""
        if span.start == span.end:
            return
        met = self._met(span)
        prints = [
            p for patch in met for p in patch.prints if not (writes and covers(span, p.range))
        ]
        prints.append(Print(span, who, writes))
        start = min([span.start, *(patch.start for patch in met)])
        end = max([span.end, *(patch.end for patch in met)])
        if len(prints) > MANY:
            prints = self._joined(prints)
        patches = self._patches.setdefault(span.buffer, [])
        at = bisect_left(patches, start, key=_START)
        patches[at : at + len(met)] = [_Patch(start, end, prints)]

    def clear(self) -> None:
        """Forget all accesses."""
        self._patches.clear()

    def _met(self, span: Range) -> Sequence[_Patch]:
        patches = self._patches.get(span.buffer)
        if not patches or span.start == span.end:
            return ()
        first = bisect_right(patches, span.start, key=_START)
        if first and patches[first - 1].end > span.start:
            first -= 1
        return patches[first : bisect_left(patches, span.end, lo=first, key=_START)]

    def _joined(self, prints: Sequence[Print]) -> list[Print]:
        found = []
        for writes in (False, True):
            same = [p for p in prints if p.writes is writes]
            if same:
                start = min(p.range.start for p in same)
                end = max(p.range.end for p in same)
                who = self._join([p.who for p in same])
                found.append(Print(Range(same[0].range.buffer, start, end), who, writes))
        return found


def covers(span: Range, other: Range) -> bool:
    """True if every access that clashes with `other` clashes with `span` too."""
    if span.stride:
        return span == other
    return span.start <= other.start and other.end <= span.end
