"""What of a graph that is cut into splits needs memory, and when: the allocator's input."""

from collections.abc import Iterator, Mapping, Sequence

from tensorplug.device.buffer import BufferType
from tensorplug.graph.graph import Graph, units
from tensorplug.graph.tensor import Tensor
from tensorplug.planning.assign import Choice
from tensorplug.planning.memory import Step
from tensorplug.planning.split import Split, localised
from tensorplug.planning.stages import end_of


def timeline(
    graph: Graph,
    where: Mapping[Tensor, Choice],
    splits: Sequence[Split],
    pools: Sequence[BufferType],
    private: Sequence[Tensor],
    *,
    every_node: bool = False,
) -> list[Step]:
    """What comes into being when, and what is needed for it."""
    own = frozenset(private)
    steps = [Step(t, (), where[t].backend) for t in graph.inputs if t not in own]
    for split in splits:
        steps.extend(Step(c.target, (c.source,), split.backend) for c in split.copies)
        if pools[split.backend].only_shared and not every_node:
            steps.append(_split_step(split, shared_nodes(graph, splits, split)))
        else:
            steps.extend(node_steps(split))
    return steps


def kept(graph: Graph, splits: Sequence[Split]) -> list[Tensor]:
    """What stays to the end of a run."""
    # What another device copies may still be in flight when its own device runs on: it stays.
    copied = [copy.source for split in splits for copy in split.copies]
    return [*graph.outputs, *graph.effects, *copied]


def shared_nodes(graph: Graph, splits: Sequence[Split], split: Split) -> tuple[Tensor, ...]:
    """Roots of a split that others read: later splits, copies, the user."""
    others = [other for other in splits if other is not split]
    read = {t.root for t in (*graph.outputs, *graph.effects)}
    read |= {s.root for other in others for node in other.nodes for s in node.sources}
    read |= {root for other in others for node in other.nodes for root in node.written_roots}
    read |= {copy.source.root for other in others for copy in other.copies}
    return tuple(node for node in split.nodes if node in read)


def _split_step(split: Split, shared: Sequence[Tensor]) -> Step:
    """All of a split at once, for memory of which it needs some for what others read alone."""
    read = tuple(s for node in split.nodes for s in localised(node.sources, split.local))
    touched = (*read, *(root for node in split.nodes for root in node.written_roots))
    outside = tuple(t for t in touched if t.root not in split.nodes)
    first = shared[0] if shared else split.nodes[-1]
    return Step(first, (*outside, *shared), split.backend, tuple(shared[1:]), ())


def node_steps(split: Split) -> Iterator[Step]:
    """The steps of its nodes: one for each group, at the place of the last node."""
    beside = {end_of(work) for stage in split.stages for work in stage[1:]}
    for work in units(split.nodes, split.groups):
        if isinstance(work, Tensor):
            touched = (*localised(work.sources, split.local), *work.written_roots)
            yield Step(work, touched, split.backend, beside=work in beside)
        else:
            touched = (*localised(work.inputs, split.local), *work.last.written_roots)
            also = tuple(t.root for t in work.outputs if t is not work.last)
            over = work.replaceable
            yield Step(work.last, touched, split.backend, also, over, beside=work.last in beside)
