"""Concurrency: which work of a graph may run side by side, and where barriers must stand.

`arrange` orders work in stages before it has memory: nothing in a stage depends on other work of
it, and between two stages stands a barrier. The allocator keeps what a stage uses apart
(`Step.beside`). `placed` is the second step: it puts barriers into the order of any bound graph by
the bytes that its work really touches.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from tensorplug.device.ranges import Range, range_in, range_of, ranges, touched
from tensorplug.errors import GraphError
from tensorplug.fusion.formulas import Group
from tensorplug.graph.graph import Bindings, BoundGraph
from tensorplug.graph.tensor import Tensor
from tensorplug.planning.footprints import Footprints

CONCURRENCY = "TENSORPLUG_CONCURRENCY"
"""The environment variable that keeps all work in program order, one after the other, if 0."""
AHEAD = 64
"""Pieces of work that are looked at beyond the first one that must wait."""

Work = Tensor | Group
Stage = tuple[Work, ...]
"""Work that may run in any order, or at once."""


@dataclass(frozen=True, slots=True)
class Concurrency:
    """The work of a graph in stages, with a barrier between each two: `str()` lists them."""

    stages: tuple[Stage, ...]

    @property
    def work(self) -> int:
        """How many nodes and fused groups there are."""
        return sum(map(len, self.stages))

    @property
    def nodes(self) -> int:
        """How many nodes are computed, those in groups too."""
        return sum(len(nodes_of(work)) for stage in self.stages for work in stage)

    @property
    def barriers(self) -> int:
        """How many barriers there are."""
        return max(len(self.stages) - 1, 0)

    def names(self) -> tuple[tuple[str, ...], ...]:
        """What is in each stage: nodes by their names, groups by those of their last nodes."""
        return tuple(tuple(map(label, stage)) for stage in self.stages)

    def __str__(self) -> str:
        barriers = "1 barrier" if self.barriers == 1 else f"{self.barriers} barriers"
        lines = [f"{barriers} among {self.work} pieces of work, {self.nodes} nodes"]
        lines += [f"stage {i}: {', '.join(names)}" for i, names in enumerate(self.names())]
        return "\n".join(lines)


def label(work: Work) -> str:
    """A node's name, or that of the last node of a group and its pattern; `#7` without a name."""
    node = end_of(work)
    name = node.name or f"#{node.serial}"
    return name if isinstance(work, Tensor) else f"{name} ({work.pattern.name})"


def end_of(work: Work) -> Tensor:
    """The node at whose place the work stands: itself, or the last one of a group."""
    return work if isinstance(work, Tensor) else work.last


def nodes_of(work: Work) -> tuple[Tensor, ...]:
    """The node, or those of the group, in their order."""
    return (work,) if isinstance(work, Tensor) else work.nodes


# --- the order ---------------------------------------------------------------------------------


def arrange(
    work: Sequence[Work], *, ahead: int = AHEAD, places: Bindings | None = None
) -> tuple[Stage, ...]:
    """Put `work`, given in the order of the program, into as few stages as come with a short look.

    Work joins a stage if all that it depends on is in earlier ones and it stands no more than
    `ahead` behind the first work that is left for later; 0 keeps the order. `places` says where
    tensors lie that have memory already, by default those with storage. Takes time in proportion to
    the work.
    """
    after = _dependencies(work, places or Bindings())
    followers: list[list[int]] = [[] for _ in after]
    waits = [len(needed) for needed in after]
    for number, needed in enumerate(after):
        for earlier in needed:
            followers[earlier].append(number)
    ready = [number for number in range(len(work)) if not waits[number]]
    heapify(ready)
    stages: list[Stage] = []
    done = [False] * len(work)
    first = 0
    while first < len(work):
        stage: list[int] = []
        while ready and ready[0] <= first + ahead:
            stage.append(heappop(ready))
            done[stage[-1]] = True
            while first < len(work) and done[first]:
                first += 1
        stages.append(tuple(work[number] for number in stage))
        for number in _freed(stage, followers, waits, len(work)):
            heappush(ready, number)
    return tuple(stages)


def _freed(
    stage: Sequence[int], followers: Sequence[Sequence[int]], waits: list[int], work: int
) -> list[int]:
    """The work that waits for nothing more once `stage` is done."""
    finished = list(stage)
    freed: list[int] = []
    while finished:
        for number in followers[finished.pop()]:
            waits[number] -= 1
            if not waits[number]:
                # Numbers beyond the work stand for several pieces of it: they are done with them.
                (freed if number < work else finished).append(number)
    return freed


def _dependencies(work: Sequence[Work], places: Bindings) -> list[list[int]]:
    """For each piece of work the numbers of what it comes after; numbers beyond join several."""
    after: list[list[int]] = [[] for _ in work]

    def join(numbers: Sequence[int]) -> int:
        after.append(list(dict.fromkeys(numbers)))
        return len(after) - 1

    made: dict[Tensor, int] = {}
    changing = _Changing(work, places)
    trail = Footprints(join)
    for number, piece in enumerate(work):
        reads, writes = touched(piece)
        needed = [made[t.root] for t in reads if t.root in made and not changing.holds(t)]
        spans = [(changing.span(t), False) for t in reads if changing.holds(t)]
        spans += [(changing.span(t), True) for t in writes if changing.holds(t)]
        for span, is_write in spans:
            needed += trail.clashes(span, writes=is_write)
        for span, is_write in spans:
            trail.add(span, number, writes=is_write)
        for node in writes:
            made[node.root] = number
        after[number] = list(dict.fromkeys(needed))
    return after


class _Changing:
    """Memory that is written more than once, or while it may be shared: its bytes are looked at.

    All other memory is that of one result: who reads it follows who made it, and that is all.
    """

    def __init__(self, work: Iterable[Work], places: Bindings) -> None:
        self._places = places
        self._roots: set[Tensor] = set()
        for piece in work:
            for node in nodes_of(piece):
                self._roots.update(node.written_roots)
        self._buffers = {places.where(root).buffer for root in self._roots if places.has(root)}
        self._known: dict[Tensor, bool] = {}

    def holds(self, tensor: Tensor) -> bool:
        """Whether `tensor` lies in such memory."""
        root = tensor.root
        if root not in self._known:
            places = self._places
            placed = bool(self._buffers) and places.has(root)
            self._known[root] = root in self._roots or (
                placed and places.where(root).buffer in self._buffers
            )
        return self._known[root]

    def span(self, tensor: Tensor) -> Range:
        """The bytes of `tensor`; they count from its root where that has no memory yet."""
        if self._places.has(tensor):
            return range_of(tensor, self._places.where(tensor))
        return range_in(tensor.root, tensor.view_offset, tensor)


def check_order(nodes: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    """Raise GraphError unless `wanted` holds the same nodes and keeps what they depend on."""
    if len(wanted) != len(nodes) or set(wanted) != set(nodes):
        raise GraphError("optimize: the new order does not hold the same nodes")
    place = {node: i for i, node in enumerate(wanted)}
    after = _dependencies(nodes, Bindings())
    # The latest place of what each number stands for; joins stand behind what they join.
    latest = [place[node] for node in nodes]
    for needed in after[len(nodes) :]:
        latest.append(max(latest[number] for number in needed))
    for node, needed in zip(nodes, after, strict=False):
        late = max(needed, key=latest.__getitem__, default=None)
        if late is not None and latest[late] > place[node]:
            earlier = wanted[latest[late]]
            raise GraphError(f"optimize: {node} was moved before {earlier}, which it follows")


# --- real memory -------------------------------------------------------------------------------


def placed(bound: BoundGraph) -> Concurrency:
    """The work of `bound` in its own order, with barriers where bytes that it touches ask for one.

    The fewest that this order needs, if not very many touch neighbouring bytes. A backend that lets
    work run side by side asks this when it makes a plan, and again when the plan is bound anew.
    """
    trail = Footprints(max)
    stages: list[list[Work]] = []
    for work in bound.graph.work:
        found = [(span, writes) for _, span, writes in ranges(work, bound.bindings)]
        if not stages or any(trail.clashes(span, writes=writes) for span, writes in found):
            stages.append([])
            trail.clear()
        for span, writes in found:
            trail.add(span, 0, writes=writes)
        stages[-1].append(work)
    return Concurrency(tuple(map(tuple, stages)))
