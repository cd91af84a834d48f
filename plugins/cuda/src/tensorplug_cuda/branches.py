"""Branches: launches that need not follow each other, on several streams of one capture.

Off by default: four chains of 100 launches take 155 us on four streams of an H100 and 448 us on
one, but launches of language models are nearly one chain. To remove it, delete this file, the
option `streams`, and `sides` and `ahead` of `CudaBackend`; `CudaPlan` then captures on one stream.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorplug.device.ranges import Range
from tensorplug.planning.footprints import Footprints
from tensorplug_cuda.handles import Mark
from tensorplug_simt.merging import Placed

if TYPE_CHECKING:
    from tensorplug_cuda.plan import Ready

Touch = tuple[Range, bool]
"""Bytes, and whether they are written."""


class Turn(NamedTuple):
    """The place of a launch: after the last one on `stream`, and after the launches in `waits`."""

    stream: int
    waits: tuple[int, ...]


class Branches(NamedTuple):
    """The turns of all launches, and the length of the longest chain of them."""

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
    """Distribute launches, given in a valid order, over `streams` streams.

    A launch waits for all earlier ones that wrote what it touches or touched what it writes. It
    goes to the stream of one of them, else where it causes no wait, else to the shortest chain.
    """
    turns: list[Turn] = []
    depths: list[int] = []  # how many launches follow each other up to each
    behind: list[int] = []  # the set of each launch and all before it: bit i is for launch i
    ends = [-1] * streams
    earlier = Footprints(_union)
    for number, touches in enumerate(launches):
        needed = _union(bits for span, w in touches for bits in earlier.clashes(span, writes=w))
        for span, writes in touches:
            earlier.add(span, 1 << number, writes=writes)
        waits = _last_of(needed, behind)
        before = _union(behind[i] for i in waits)
        free = [stream for stream, end in enumerate(ends) if end < 0 or before >> end & 1]
        if free:
            stream = max(free, key=lambda stream: (ends[stream] in waits, ends[stream]))
        else:
            stream = min(range(streams), key=lambda stream: depths[ends[stream]])
        end, ends[stream] = ends[stream], number
        there = behind[end] if end >= 0 else 0
        depths.append(1 + max((depths[i] for i in (*waits, end) if i >= 0), default=0))
        turns.append(Turn(stream, tuple(i for i in waits if not there >> i & 1)))
        behind.append(before | there | 1 << number)
    return Branches(tuple(turns), max(depths, default=0))


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


def _last_of(launches: int, behind: Sequence[int]) -> list[int]:
    """The launches of a set that no other launch of the set waits for."""
    found = []
    while launches:
        found.append(launches.bit_length() - 1)
        launches &= ~behind[found[-1]]
    return found


def one_by_one(count: int) -> Branches:
    """`count` launches, each after the one before."""
    return Branches((Turn(0, ()),) * count, count)


def fork(streams: Sequence[Any], launches: Sequence["Ready"], branches: Branches) -> None:
    """Queue launches on the first stream, which captures, and on others, which join it until all is
    queued."""
    begin = streams[0].record(Mark())
    joined = {0}
    awaited = {number for turn in branches.turns for number in turn.waits}
    marks: dict[int, Mark] = {}
    for number, (launch, turn) in enumerate(zip(launches, branches.turns, strict=True)):
        stream = streams[turn.stream]
        if turn.stream not in joined:
            joined.add(turn.stream)
            stream.wait_event(begin)
        for earlier in turn.waits:
            stream.wait_event(marks[earlier])
        launch.function(launch.groups, launch.local, launch.arguments, stream=stream)
        if number in awaited:
            marks[number] = stream.record(Mark())
    for other in joined - {0}:
        streams[0].wait_event(streams[other].record(Mark()))
