"""Cuts a graph with choices into splits: runs of nodes on one backend, and the copies they need."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tensorplug.fusion.formulas import Group
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Flags, Ne, Tensor
from tensorplug.planning.assign import Choices, Field, is_weight
from tensorplug.planning.stages import Stage, check_order

Key = tuple[int, Tensor, int, Ne, Ne, int]
"""What makes two copies the same: backend, root, offset, sizes, strides, version of the root."""

Order = Callable[[int, Sequence[Tensor]], Sequence[Tensor]]
"""Reorders the nodes of one split for the backend with the given index."""


@dataclass(frozen=True, slots=True)
class Copy:
    """`source` as it is when the split starts, copied to `target` in the split's own memory."""

    source: Tensor
    target: Tensor
    origin: int
    """Index of the backend whose work `source` waits for."""
    shared: bool = False
    """Whether later splits read it too."""


@dataclass(frozen=True, slots=True)
class Split:
    """Nodes that one backend runs in a row. `local` maps what they read to the copies they read.

    The split reads in place what the backends in `after` compute, or overwrites memory that they
    still read: it waits for them. Nodes of one of `groups` are computed as one; `refused` are
    groups that the device does not take, with its reasons. `stages` hold the nodes and groups in
    the same order where the device may run those of one stage side by side.
    """

    index: int
    backend: int
    nodes: tuple[Tensor, ...]
    copies: tuple[Copy, ...]
    local: Mapping[Tensor, Tensor]
    after: frozenset[int]
    groups: tuple[Group, ...] = ()
    refused: tuple[tuple[Group, str], ...] = ()
    stages: tuple[Stage, ...] = ()


class _Draft:
    def __init__(self, backend: int) -> None:
        self.backend = backend
        self.nodes: list[Tensor] = []
        self.copies: list[Copy] = []
        self.local: dict[Tensor, Tensor] = {}
        self.after: set[int] = set()


def split(
    graph: Graph, where: Choices, field: Field, order: Order, cut: Tensor | None = None
) -> tuple[Split, ...]:
    """Cut `graph`. Views neither start nor end a split; `cut` starts one in any case."""
    drafts: list[_Draft] = []
    copies: dict[Key, Tensor] = {}
    versions: dict[Tensor, int] = {}
    copying: dict[Tensor, set[int]] = {}
    shared = _Shared()
    for node in graph.nodes:
        if node.is_view:
            continue
        backend = where[node].backend
        foreign = [s for s in node.sources if needs_copy(s, node, backend, where, field)]
        if (
            not drafts
            or drafts[-1].backend != backend
            or node is cut
            or _frees_weights(foreign, drafts[-1])
        ):
            drafts.append(_Draft(backend))
            beside = _beside(backend, drafts, field)
            drafts[-1].after |= beside | shared.borrowers(backend, *beside)
        draft = drafts[-1]
        draft.after |= shared.waits(node, backend, foreign)
        for source in foreign:
            key = _key(backend, source, versions)
            if key not in copies:
                copies[key] = _local_leaf(source, field.backends[backend].name, key[-1])
                draft.copies.append(Copy(source, copies[key], _origin(source, where)))
                copying.setdefault(source.root, set()).add(backend)
            draft.local[source] = copies[key]
        draft.nodes.append(node)
        for root in node.written_roots:
            versions[root] = versions.get(root, 0) + 1
            draft.after |= copying.pop(root, set()) - {backend}
    users = Counter(target for draft in drafts for target in set(draft.local.values()))
    return tuple(
        Split(
            i,
            d.backend,
            _ordered(d, order),
            tuple(replace(c, shared=True) if users[c.target] > 1 else c for c in d.copies),
            d.local,
            frozenset(d.after),
        )
        for i, d in enumerate(drafts)
    )


class _Shared:
    """Memory that several backends use in place: who computed it, and who has read it since."""

    def __init__(self) -> None:
        self._writers: dict[Tensor, int] = {}
        self._lent: dict[int, set[int]] = {}
        self._readers: dict[Tensor, set[int]] = {}

    def waits(self, node: Tensor, backend: int, foreign: Sequence[Tensor]) -> set[int]:
        """The other backends whose work `node` needs in place, or that read what it overwrites."""
        used = [s.root for s in node.sources if s not in foreign]
        owners = {self._writers[r] for r in (*used, *node.written_roots) if r in self._writers}
        owners.discard(backend)
        for owner in owners:
            self._lent.setdefault(owner, set()).add(backend)
        late = {r for root in node.written_roots for r in self._readers.pop(root, ())}
        for root in (node.root, *node.written_roots):
            self._writers[root] = backend
        for root in used:
            self._readers.setdefault(root, set()).add(backend)
        return owners | (late - {backend})

    def borrowers(self, backend: int, *beside: int) -> set[int]:
        """Who has read its memory, or that of those `beside` it, in place since it was last asked.

        `beside` are streams that use the same memory: each waits for the one that was asked before.
        """
        found = {b for owner in (backend, *beside) for b in self._lent.pop(owner, ())}
        return found - {backend}


def _beside(backend: int, drafts: Sequence[_Draft], field: Field) -> set[int]:
    """Other streams that compute in the same memory: what one is done with, the next overwrites."""
    kinds = field.buffer_types
    return {d.backend for d in drafts if kinds[d.backend] is kinds[backend]} - {backend}


def needs_copy(source: Tensor, node: Tensor, backend: int, where: Choices, field: Field) -> bool:
    """Whether `backend` must read a copy of `source`; never of the memory that `node` writes."""
    if source.root in node.written_roots:
        return False
    if where[source].backend == backend and field.placed_type(source) is None:
        return False
    return not field.reads(backend, source, where)


def _origin(source: Tensor, where: Choices) -> int:
    return where[source.root if source.is_view else source].backend


def _key(backend: int, source: Tensor, versions: Mapping[Tensor, int]) -> Key:
    version = versions.get(source.root, 0)
    return (backend, source.root, source.view_offset, source.ne, source.nb, version)


def _local_leaf(source: Tensor, backend: str, version: int) -> Tensor:
    suffix = f"#{version}" if version else ""
    return Tensor(
        source.dtype,
        source.ne,
        source.nb,
        source.rank,
        flags=Flags.NONE,
        name=f"{backend}#{source.name or source.serial}{suffix}",
    )


def _frees_weights(foreign: Sequence[Tensor], draft: _Draft) -> bool:
    """Whether a new split lets the copy of an earlier foreign weight be reused for the next."""
    return bool(draft.copies) and any(is_weight(s) and s not in draft.local for s in foreign)


def _ordered(draft: _Draft, order: Order) -> tuple[Tensor, ...]:
    wanted = tuple(order(draft.backend, tuple(draft.nodes)))
    if wanted == tuple(draft.nodes):
        return wanted
    check_order(draft.nodes, wanted)
    return wanted


def localised(sources: Iterable[Tensor], local: Mapping[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """`sources` with copies in place of what lies elsewhere."""
    return tuple(local.get(s, s) for s in sources)
