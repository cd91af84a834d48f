"""`Graph`: what to compute, in which order; `Bindings`: where it lies."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tensorplug.errors import GraphError, NotAllocated
from tensorplug.graph.tensor import Storage, Tensor

if TYPE_CHECKING:
    from tensorplug.fusion.formulas import Group


class Graph:
    """Immutable: the tensors that `outputs` and `effects` need, in execution order.

    Execution order is the order in which tensors were made. So sources come before what uses them,
    and accesses to the same memory keep the order of the program that built them. `effects` are
    tensors whose writes must happen though nothing reads them. `inactive` alternatives belong to
    the graph and to its memory map but are not computed, so that graphs which differ in nothing but
    the choice have one topology.
    """

    def __init__(
        self,
        outputs: Tensor | Sequence[Tensor],
        *,
        effects: Iterable[Tensor] = (),
        inactive: Iterable[Tensor] = (),
    ) -> None:
        self.outputs = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
        self.effects = tuple(effects)
        if not self.outputs and not self.effects:
            raise GraphError("Graph: no outputs and no effects; there is nothing to compute")
        active = _reach((*self.outputs, *self.effects))
        everything = _reach((*self.outputs, *self.effects, *inactive))
        ordered = sorted(everything, key=lambda t: t.serial)
        self.nodes = tuple(t for t in ordered if not t.is_leaf)
        self.leafs = tuple(t for t in ordered if t.is_leaf)
        self._skipped = frozenset(everything - active)

    groups: "tuple[Group, ...]" = ()
    """Nodes that are computed together, each group at the place of its last node."""
    stages: "tuple[tuple[Tensor | Group, ...], ...]" = ()
    """The work in order where parts of it may run side by side: all that is in one stage."""

    def part(
        self,
        nodes: Sequence[Tensor],
        outputs: Sequence[Tensor] = (),
        groups: "Sequence[Group]" = (),
        stages: "Iterable[Sequence[Tensor | Group]]" = (),
    ) -> "Graph":
        """A graph of just these nodes, in this order; what they read from outside are its leafs.

        `stages` hold all nodes and groups in the same order.
        """
        part = Graph.__new__(Graph)
        inside = set(nodes)
        leafs: dict[Tensor, None] = {}
        for node in nodes:
            for source in (*node.sources, node.view_of):
                if source is not None and source not in inside:
                    leafs[source] = None
        part.outputs, part.effects = tuple(outputs), ()
        part.nodes, part.leafs = tuple(nodes), tuple(leafs)
        part._skipped = self._skipped
        part.groups = tuple(groups)
        busy = (tuple(piece for piece in stage if part._is_work(piece)) for stage in stages)
        part.stages = tuple(stage for stage in busy if stage)
        return part

    def computes(self, node: Tensor) -> bool:
        """Whether `node` is computed: part of the chosen alternatives and not a pure view."""
        return not node.is_view and node not in self._skipped

    def _is_work(self, piece: "Tensor | Group") -> bool:
        return not isinstance(piece, Tensor) or (self.computes(piece) and piece.size > 0)

    @cached_property
    def work(self) -> "tuple[Tensor | Group, ...]":
        """What there is to do, in order: nodes with elements, and groups in place of theirs."""
        return tuple(filter(self._is_work, units(self.nodes, self.groups)))

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """Leafs that the user writes before a run."""
        return tuple(t for t in self.leafs if t.is_input)

    @cached_property
    def uses(self) -> Mapping[Tensor, int]:
        """How many times each tensor is a source."""
        return Counter(source for node in self.nodes for source in node.sources)

    @cached_property
    def readers(self) -> Mapping[Tensor, Sequence[Tensor]]:
        """The nodes that have each tensor as a source, views too."""
        found: dict[Tensor, list[Tensor]] = {}
        for node in self.nodes:
            for source in dict.fromkeys(node.sources):
                found.setdefault(source, []).append(node)
        return found

    @cached_property
    def key(self) -> tuple[object, ...]:
        """What two graphs of the same structure have in common: ops, types, layouts, edges."""
        index = {t: i for i, t in enumerate((*self.leafs, *self.nodes))}
        return (
            tuple(_leaf_key(t, index) for t in self.leafs),
            tuple(_node_key(t, index) for t in self.nodes),
            tuple(index[t] for t in self.outputs),
            tuple(i for i, t in enumerate(self.nodes) if t in self._skipped),
            tuple((g.pattern.name, tuple(index[n] for n in g.nodes)) for g in self.groups),
            tuple(map(len, self.stages)),
        )

    def __repr__(self) -> str:
        return (
            f"<Graph {len(self.nodes)} nodes, {len(self.leafs)} leafs, "
            f"{len(self.outputs)} outputs, {len(self.effects)} effects>"
        )


def forward_select(alternatives: Sequence[Tensor], chosen: int) -> Graph:
    """A graph that holds all `alternatives` and computes the one at index `chosen`."""
    if not 0 <= chosen < len(alternatives):
        raise GraphError(f"forward_select: no alternative {chosen} among {len(alternatives)}")
    others = [t for i, t in enumerate(alternatives) if i != chosen]
    return Graph(alternatives[chosen], inactive=others)


class Bindings:
    """Where each tensor of a graph lies: a table for those without storage of their own.

    A tensor in the table lies there; else a view or a write lies in its root; else a persistent
    tensor lies in its own storage.
    """

    __slots__ = ("_places",)

    def __init__(self, places: Mapping[Tensor, Storage] | None = None) -> None:
        self._places = dict(places or {})

    def where(self, tensor: Tensor) -> Storage:
        """Buffer and offset of the first byte of `tensor`. Raises NotAllocated."""
        here = self._places.get(tensor)
        if here is not None:
            return here
        root = tensor.root
        home = self._places.get(root) or root.storage
        if home is None:
            raise NotAllocated(
                f"{tensor}: has no memory in these bindings; schedule its graph first"
            )
        if not tensor.view_offset:
            return home
        return Storage(home.buffer, home.offset + tensor.view_offset)

    def has(self, tensor: Tensor) -> bool:
        """Whether `tensor` lies anywhere."""
        root = tensor.root
        return tensor in self._places or root in self._places or root.storage is not None

    def names(self, tensor: Tensor) -> bool:
        """Whether the table has a place for `tensor` itself, be it a view or not."""
        return tensor in self._places

    def with_places(self, places: Mapping[Tensor, Storage]) -> "Bindings":
        """Return these bindings with `places` before them."""
        return Bindings({**self._places, **places})


@dataclass(frozen=True, slots=True)
class BoundGraph:
    """A graph and the places of its tensors: all a backend needs to plan it."""

    graph: Graph
    bindings: Bindings


def _reach(ends: Iterable[Tensor]) -> set[Tensor]:
    found: set[Tensor] = set()
    waiting = list(ends)
    while waiting:
        tensor = waiting.pop()
        if tensor in found:
            continue
        found.add(tensor)
        waiting.extend(tensor.sources)
        if tensor.view_of is not None:
            waiting.append(tensor.view_of)
    return found


def _leaf_key(t: Tensor, index: Mapping[Tensor, int]) -> tuple[object, ...]:
    root = index.get(t.view_of, -1) if t.view_of is not None else -1
    return (t.dtype.id, t.ne, t.nb, t.flags, t.op, t.storage is not None, root, t.view_offset)


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


def units(nodes: Iterable[Tensor], groups: "Iterable[Group]") -> "tuple[Tensor | Group, ...]":
    """`nodes` in their order, each group in place of its last one."""
    ends = {group.last: group for group in groups}
    inside = {node for group in ends.values() for node in group.nodes}
    return tuple(ends.get(n, n) for n in nodes if n in ends or n not in inside)
