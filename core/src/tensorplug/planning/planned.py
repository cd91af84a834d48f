"""`PlannedGraph`: a graph with its choices, splits and memory map, as data."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tensorplug.device.buffer import BufferType
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Tensor
from tensorplug.planning.assign import Choice, Choices
from tensorplug.planning.memory import MemoryMap, check_leafs, plan_memory
from tensorplug.planning.split import Split
from tensorplug.planning.timeline import kept, timeline


@dataclass(frozen=True, slots=True)
class PlannedGraph:
    """A graph with its choices, splits and memory map. It holds no memory."""

    graph: Graph
    where: Choices
    splits: tuple[Split, ...]
    memory: MemoryMap
    private: tuple[Tensor, ...]
    """Leafs whose memory belongs to one batch: inputs, and with several batches the copies too."""
    transient: tuple[Tensor, ...]
    """Inputs that every run must be given."""


def plan_graph(
    graph: Graph,
    where: Choices,
    splits: tuple[Split, ...],
    pools: Sequence[BufferType],
    *,
    transient: Iterable[Tensor],
    batches: int,
) -> PlannedGraph:
    """Plan the memory of a graph that is cut into `splits`."""
    check_leafs(graph.leafs)
    shared = frozenset(transient)
    private = [t for t in graph.inputs if t not in shared or batches > 1]
    if batches > 1:
        private.extend(copy.target for split in splits for copy in split.copies)
    memory = plan_splits(graph, where, splits, pools, private)
    every_run = tuple(t for t in graph.inputs if t in shared)
    return PlannedGraph(graph, where, splits, memory, tuple(private), every_run)


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
    return plan_memory(steps, pools, keep=kept(graph, splits), placed=private)


def private_by_pool(planned: PlannedGraph) -> dict[int, list[Tensor]]:
    """The tensors for which each batch has memory, by the stream in whose memory they lie."""
    homes = {copy.target: split.stream for split in planned.splits for copy in split.copies}
    found: dict[int, list[Tensor]] = {}
    for tensor in planned.private:
        home = homes[tensor] if tensor in homes else planned.where[tensor].stream
        found.setdefault(home, []).append(tensor)
    return found
