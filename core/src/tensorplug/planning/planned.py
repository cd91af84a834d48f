"""`PlannedGraph`: a graph with its choices, splits and memory map, as data."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tensorplug.device.abilities import SupportsOptimize
from tensorplug.device.backend import Backend
from tensorplug.device.buffer import BufferType
from tensorplug.fusion.formulas import FUSION
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Tensor
from tensorplug.planning.arrange import arranged
from tensorplug.planning.assign import Choice, Choices, Streams, assign, is_weight
from tensorplug.planning.fuse import fused
from tensorplug.planning.memory import MemoryMap, Moment, check_leafs, plan_memory
from tensorplug.planning.split import Split, homes_of, split
from tensorplug.planning.stages import CONCURRENCY
from tensorplug.planning.timeline import surviving_tensors, timeline


@dataclass(frozen=True, slots=True)
class Touched:
    """How a graph uses a tensor that keeps its value between runs."""

    streams: frozenset[int]
    """The streams that read, write or copy it."""
    written: bool


@dataclass(frozen=True, slots=True)
class PlannedGraph:
    """A graph with its choices, splits and memory map. It holds no memory."""

    graph: Graph
    where: Choices
    splits: tuple[Split, ...]
    homes: Mapping[Tensor, int]
    """For each output and effect the stream that computes it, wrote it last, or else holds it."""
    touched: Mapping[Tensor, Touched]
    """Of placed tensors that no usage declares constant, how the graph uses them."""
    memory: MemoryMap
    private: tuple[Tensor, ...]
    """Inputs that keep their values between runs: each batch has memory of its own for them."""
    lane: MemoryMap
    """Where transient inputs and copies lie in the memory of a lane, if there are several batches.

    With one batch they lie with the nodes."""
    transient: tuple[Tensor, ...]
    """Inputs that every run must be given."""

    @property
    def output_homes(self) -> dict[Tensor, int]:
        """`homes`, of the outputs only."""
        return {output: self.homes[output] for output in self.graph.outputs}

    @property
    def outside(self) -> tuple[Tensor, ...]:
        """The leafs that `memory` has no places for."""
        return (*self.private, *self.lane.slots)


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """How a scheduler plans all of its graphs."""

    batches: int
    """How many batches may be in flight."""
    offload: bool
    """Devices may take work whose weights lie with the last stream."""
    ahead: int | None
    """How many pieces of work `arranged` looks ahead; None to ask each device."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is planned, for the streams of one time and again for those of another."""

    graph: Graph
    pins: Mapping[Tensor, Backend] = field(default_factory=dict)
    """The stream of some tensors, chosen by the user."""
    transient: tuple[Tensor, ...] = ()
    """Inputs that give up their memory once they are read."""
    fuse: bool = True


def plan_graph(
    request: PlanRequest,
    streams: Streams,
    pins: Mapping[Tensor, int],
    settings: PlanSettings,
    cut: Tensor | None = None,
) -> PlannedGraph:
    """Choose a stream for each tensor, cut the graph into splits, and plan their memory.

    `pins` are those of the request as numbers of streams. A split starts at the node `cut`, if
    given. TENSORPLUG_FUSION=0 and TENSORPLUG_CONCURRENCY=0 leave out groups and stages. Raises
    Unsupported, GraphError, OutOfMemory.
    """
    streams.forget()
    graph = request.graph
    where = assign(graph, streams, pins, offload=settings.offload)
    shared, batches, pools = frozenset(request.transient), settings.batches, streams.buffer_types
    every_run = tuple(t for t in graph.inputs if t in shared)
    reused = every_run if batches == 1 else ()
    splits = split(graph, where, streams, partial(_optimize, streams), cut, reused)
    if request.fuse and os.environ.get(FUSION, "1") != "0":
        splits = fused(graph, splits, streams)
    if os.environ.get(CONCURRENCY, "1") != "0":
        splits = arranged(splits, streams.backends, streams.moved, settings.ahead)
    check_leafs(graph.leafs)
    private = tuple(t for t in graph.inputs if t not in shared)
    passing: list[Moment] = []
    if batches > 1:
        passing += (Moment(t, (), where[t].stream) for t in every_run)
        passing += (Moment(c.target, (), piece.stream) for piece in splits for c in piece.copies)
    lane = plan_memory(passing, pools, keep=[moment.tensor for moment in passing])
    memory = plan_splits(graph, where, splits, pools, (*private, *lane.slots))
    homes = homes_of((*graph.outputs, *graph.effects), splits, where)
    touched = _touched(splits, homes)
    return PlannedGraph(graph, where, splits, homes, touched, memory, private, lane, every_run)


def _touched(splits: Iterable[Split], homes: Mapping[Tensor, int]) -> dict[Tensor, Touched]:
    """How `splits` and the reads of outputs use each placed tensor that may be written."""
    streams: dict[Tensor, set[int]] = {}

    def note(tensor: Tensor, stream: int) -> None:
        root = tensor.root
        if root.place is not None and not is_weight(root):
            streams.setdefault(root, set()).add(stream)

    written: set[Tensor] = set()
    for output, home in homes.items():
        note(output, home)
    for piece in splits:
        for copy in piece.copies:
            note(copy.source, copy.origin)
        for node in piece.nodes:
            written.update(node.written_roots)
            for tensor in (*node.sources, *node.written_roots):
                note(tensor, piece.stream)
    return {root: Touched(frozenset(s), root in written) for root, s in streams.items()}


def _optimize(streams: Streams, stream: int, nodes: Sequence[Tensor]) -> Sequence[Tensor]:
    backend = streams.backends[stream]
    return backend.optimize(nodes) if isinstance(backend, SupportsOptimize) else nodes


def plan_splits(
    graph: Graph,
    where: Mapping[Tensor, Choice],
    splits: Sequence[Split],
    pools: Sequence[BufferType],
    private: Sequence[Tensor],
    *,
    every_node: bool = False,
) -> MemoryMap:
    """Where each tensor lies that a run brings into being; with `every_node` none is left out."""
    steps = timeline(graph, where, splits, pools, private, every_node=every_node)
    return plan_memory(steps, pools, keep=surviving_tensors(graph, splits), placed=private)


def private_by_pool(planned: PlannedGraph) -> dict[int, list[Tensor]]:
    """The inputs for which each batch has memory, by the stream in whose memory they lie."""
    found: dict[int, list[Tensor]] = {}
    for tensor in planned.private:
        found.setdefault(planned.where[tensor].stream, []).append(tensor)
    return found
