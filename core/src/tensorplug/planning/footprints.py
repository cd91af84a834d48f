"""`Footprints`: who touched which bytes, and whose order matters to who comes next."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from tensorplug.device.ranges import Memory, Range

MANY = 32
"""Footprints on neighbouring bytes that are kept apart; more count as one of all these bytes."""

Join = Callable[[Sequence[int]], int]
"""Makes one number stand for several."""


class Print(NamedTuple):
    """Who touched `range`, as a number."""

    range: Range
    who: int
    writes: bool


@dataclass(slots=True)
class _Patch:
    """Bytes that hang together, and who touched them."""

    start: int
    end: int
    prints: list[Print]


_START = attrgetter("start")


class Footprints:
    """Remembers accesses, as far as they matter: what is written over is forgotten.

    Asking and adding take time that hardly grows with what is remembered. Where many touched the
    same bytes `join` makes one number of theirs, which then stands for accesses to all these bytes:
    more may be found then than there is, never less.
    """

    def __init__(self, join: Join) -> None:
        self._join = join
        self._patches: dict[Memory, list[_Patch]] = {}

    def clashes(self, span: Range, *, writes: bool) -> list[int]:
        """Who must be done before `span` may be accessed: writers of it, and readers for a write.

        Some may be named several times.
        """
        return [
            found.who
            for patch in self._met(span)
            for found in patch.prints
            if (writes or found.writes) and found.range.overlaps(span)
        ]

    def add(self, span: Range, who: int, *, writes: bool) -> None:
        """Remember an access; who is asked about before comes before it."""
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
        """Forget all."""
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
    """Whether all that clashes with `other` clashes with `span` as well."""
    if span.stride:
        return span == other
    return span.start <= other.start and other.end <= span.end
