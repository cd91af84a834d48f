"""Branches: launches that need not follow each other, on several streams of one capture."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cupy.cuda import Event as Mark

from tensorplug.device.ranges import Range
from tensorplug.planning.footprints import Footprints
from tensorplug_simt.merging import Placed

if TYPE_CHECKING:
    from tensorplug_cuda.plan import Ready

Touch = tuple[Range, bool]
"""Bytes, and whether they are written."""


class Turn(NamedTuple):
    """Where a launch stands: behind the one before on `stream`, and behind the launches `waits`."""

    stream: int
    waits: tuple[int, ...]


class Branches(NamedTuple):
    """The turns of all launches, and how many of these follow each other at most."""

    turns: tuple[Turn, ...]
    longest: int

    @property
    def streams(self) -> int:
        """How many streams there are launches on."""
        return len({turn.stream for turn in self.turns})


def touched(parts: Iterable[Placed]) -> list[Touch]:
    """What a launch of `parts` touches."""
    return [touch for part in parts for touch in part.touched]


def spread(launches: Iterable[Sequence[Touch]], streams: int) -> Branches:
    """Put launches, in an order that is right, on so many streams.

    Each comes after all earlier ones whose writes it meets or whose bytes it writes.
    """
    lanes = _Lanes(streams)
    trail = Footprints(lanes.join)
    for number, found in enumerate(launches):
        lanes.put(who for range_, writes in found for who in trail.clashes(range_, writes=writes))
        for range_, writes in found:
            trail.add(range_, number, writes=writes)
    return Branches(tuple(lanes.turns), max(lanes.depths, default=0))


def one_by_one(count: int) -> Branches:
    """So many launches, each behind the one before."""
    return Branches((Turn(0, ()),) * count, count)


def fork(streams: Sequence[Any], launches: Sequence["Ready"], branches: Branches) -> None:
    """Queue launches on the first stream, which captures, and on others, which join it until all is
    queued."""
    begin = streams[0].record(Mark(disable_timing=True))
    joined = {0}
    awaited = {number for turn in branches.turns for number in turn.waits}
    marks: dict[int, Any] = {}
    for number, (launch, turn) in enumerate(zip(launches, branches.turns, strict=True)):
        stream = streams[turn.stream]
        if turn.stream not in joined:
            joined.add(turn.stream)
            stream.wait_event(begin)
        for earlier in turn.waits:
            stream.wait_event(marks[earlier])
        launch.function(launch.groups, launch.local, launch.arguments, stream=stream)
        if number in awaited:
            marks[number] = stream.record(Mark(disable_timing=True))
    for other in joined - {0}:
        streams[0].wait_event(streams[other].record(Mark(disable_timing=True)))


class _Lanes:
    """Streams with the launches on them, and what each launch comes after."""

    def __init__(self, count: int) -> None:
        self.turns: list[Turn] = []
        self.depths: list[int] = []
        """How many follow each other up to each launch."""
        self._known: list[list[int]] = []
        """For each launch the last one of every stream that is done when it is; -1 for none."""
        self._ends = [-1] * count
        self._joined: list[tuple[int, ...]] = []

    def join(self, numbers: Sequence[int]) -> int:
        """A number below 0 for several: it stands for the last of them on each stream."""
        last: dict[int, int] = {}
        for number in sorted(self._single(numbers)):
            last[self.turns[number].stream] = number
        self._joined.append(tuple(last.values()))
        return -len(self._joined)

    def put(self, after: Iterable[int]) -> None:
        """Put the next launch on a stream, behind others."""
        known, waits = [-1] * len(self._ends), []
        # The later ones come after some of the earlier ones.
        for number in sorted(set(self._single(after)), reverse=True):
            if known[self.turns[number].stream] < number:
                waits.append(number)
                known = _later(known, self._known[number])
        stream = self._best(waits, known)
        end = self._ends[stream]
        if end >= 0:
            waits = [n for n in waits if self._known[end][self.turns[n].stream] < n]
            known = _later(known, self._known[end])
        before = (*waits, *((end,) if end >= 0 else ()))
        known[stream] = self._ends[stream] = len(self.turns)
        self.turns.append(Turn(stream, tuple(waits)))
        self._known.append(known)
        self.depths.append(1 + max((self.depths[i] for i in before), default=0))

    def _best(self, waits: Sequence[int], known: Sequence[int]) -> int:
        """The stream whose last launch costs no wait, or one that is waited for all the same; else
        that whose last launch comes first."""
        free = [stream for stream, end in enumerate(self._ends) if end <= known[stream]]
        if free:
            return max(free, key=lambda stream: (self._ends[stream] in waits, self._ends[stream]))
        return min(range(len(self._ends)), key=lambda stream: self.depths[self._ends[stream]])

    def _single(self, numbers: Iterable[int]) -> Iterator[int]:
        for number in numbers:
            if number < 0:
                yield from self._joined[-number - 1]
            else:
                yield number


def _later(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [max(a, b) for a, b in zip(one, other, strict=True)]
