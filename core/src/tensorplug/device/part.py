"""`Part`: what a stream is given to compute, and where its tensors lie."""

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from tensorplug.fusion.formulas import Group
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Tensor

_NOWHERE = Bindings()


class Part:
    """Immutable: nodes of a graph in the order in which one stream computes them.

    What they read from outside are its `leafs`, computed elsewhere or not at all. `bindings` says
    where every tensor lies.
    """

    groups: tuple[Group, ...]
    """Nodes that are computed together, each group at the place of its last node."""
    stages: tuple[tuple[Tensor | Group, ...], ...]
    """The work in order where parts of it may run side by side: all that is in one stage."""

    def __init__(
        self,
        nodes: Iterable[Tensor],
        bindings: Bindings = _NOWHERE,
        *,
        outputs: Iterable[Tensor] = (),
        groups: Iterable[Group] = (),
        stages: Iterable[Sequence[Tensor | Group]] = (),
    ) -> None:
        """`stages` hold all nodes and groups in the same order."""
        self.nodes = tuple(nodes)
        self.bindings = bindings
        self.outputs = tuple(outputs)
        self.groups = tuple(groups)
        busy = (tuple(filter(_is_work, stage)) for stage in stages)
        self.stages = tuple(stage for stage in busy if stage)
        read = (t for node in self.nodes for t in (*node.sources, node.view_of) if t is not None)
        inside = set(self.nodes)
        self.leafs = tuple(t for t in dict.fromkeys((*read, *self.outputs)) if t not in inside)

    @classmethod
    def of(cls, graph: Graph, bindings: Bindings = _NOWHERE) -> "Part":
        """All of a graph for one stream."""
        return cls(graph.nodes, bindings, outputs=graph.outputs)

    def bind(self, bindings: Bindings) -> "Part":
        """The same part with its tensors at other places."""
        other = copy.copy(self)
        other.bindings = bindings
        return other

    @cached_property
    def work(self) -> tuple[Tensor | Group, ...]:
        """What there is to do, in order: nodes with elements, and groups in place of theirs."""
        return tuple(filter(_is_work, units(self.nodes, self.groups)))

    @cached_property
    def uses(self) -> Mapping[Tensor, int]:
        """How many times each tensor is a source."""
        return Counter(source for node in self.nodes for source in node.sources)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """What two parts of the same structure have in common: ops, types, layouts, edges."""
        index = {t: i for i, t in enumerate((*self.leafs, *self.nodes))}
        return (
            tuple(_leaf_key(t, index) for t in self.leafs),
            tuple(_node_key(t, index) for t in self.nodes),
            tuple(index[t] for t in self.outputs),
            tuple((g.pattern.name, tuple(index[n] for n in g.nodes)) for g in self.groups),
            tuple(map(len, self.stages)),
        )

    def has_structure_of(self, other: "Part") -> bool:
        """Whether a plan of the one can be bound to the other: the same tensors, or equal keys."""
        return self.same_tensors(other) or self.key == other.key

    def same_tensors(self, other: "Part") -> bool:
        """Whether both are the same nodes in the same groups and stages; only places may differ."""
        mine = (self.nodes, self.outputs, self.groups, self.stages)
        return mine == (other.nodes, other.outputs, other.groups, other.stages)

    def __repr__(self) -> str:
        return f"<Part {len(self.nodes)} nodes, {len(self.leafs)} leafs>"


def units(nodes: Iterable[Tensor], groups: Iterable[Group]) -> tuple[Tensor | Group, ...]:
    """`nodes` in their order, each group in place of its last one."""
    ends = {group.last: group for group in groups}
    inside = {node for group in ends.values() for node in group.nodes}
    return tuple(ends.get(n, n) for n in nodes if n in ends or n not in inside)


def _is_work(piece: Tensor | Group) -> bool:
    return not isinstance(piece, Tensor) or (not piece.is_view and piece.size > 0)


def _leaf_key(t: Tensor, index: Mapping[Tensor, int]) -> tuple[object, ...]:
    root = index.get(t.view_of, -1) if t.view_of is not None else -1
    return (t.dtype.id, t.ne, t.nb, t.flags, t.op, t.place is not None, root, t.view_offset)


def _node_key(t: Tensor, index: Mapping[Tensor, int]) -> tuple[object, ...]:
    operands = tuple(-1 if s is None else index[s] for s in t.operands)
    root = index.get(t.view_of, -1) if t.view_of is not None else -1
    return (
        t.op,
        t.dtype.id,
        t.ne,
        t.nb,
        tuple(t.params.items()),
        operands,
        root,
        t.view_offset,
        t.writes,
    )
