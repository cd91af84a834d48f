"""Cuts an assigned graph into splits: runs of nodes on one stream, and the copies they need."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tensorplug.fusion.formulas import Group
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Flags, Ne, Tensor
from tensorplug.planning.assign import Choices, Streams, is_weight
from tensorplug.planning.stages import Stage, check_order

Key = tuple[int, Tensor, int, Ne, Ne, int]
"""Identity of a copy: stream, root, offset, sizes, strides, and the number of writes so far."""

Order = Callable[[int, Sequence[Tensor]], Sequence[Tensor]]
"""Reorders the nodes of one split for the stream with the given number."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A copy of `source` to `target`, in memory of the split's stream, when the split starts."""

    source: Tensor
    target: Tensor
    origin: int
    """The number of the stream that computes or holds `source`."""
    shared: bool = False
    """True if several splits read `target`."""


@dataclass(frozen=True, slots=True)
class Split:
    """Consecutive nodes that one stream runs. `local` maps tensors of other streams to copies.

    The split waits for the streams in `after`: it reads their results in place, or overwrites
    memory that they read. One kernel computes each of `groups`; `refused` are groups that the
    device refuses, with its reasons. `stages` hold the nodes and groups in the same order, if the
    device may run the work of one stage in parallel; otherwise `stages` is empty.
    """

    index: int
    stream: int
    nodes: tuple[Tensor, ...]
    copies: tuple[Crossing, ...]
    local: Mapping[Tensor, Tensor]
    after: frozenset[int]
    groups: tuple[Group, ...] = ()
    refused: tuple[tuple[Group, str], ...] = ()
    stages: tuple[Stage, ...] = ()


class _Draft:
    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.nodes: list[Tensor] = []
        self.copies: list[Crossing] = []
        self.local: dict[Tensor, Tensor] = {}
        self.after: set[int] = set()


def split(
    graph: Graph,
    where: Choices,
    streams: Streams,
    order: Order,
    cut: Tensor | None = None,
    reused: Iterable[Tensor] = (),
) -> tuple[Split, ...]:
    """Cut `graph` into splits, by the stream that `where` gives each node.

    Views neither start nor end a split. The node `cut`, if given, starts a split in any case.
    `order` may reorder the nodes of a split; an invalid order raises GraphError. `reused` are
    inputs whose memory later nodes may get, as they get that of results.
    """
    drafts: list[_Draft] = []
    copies: dict[Key, Tensor] = {}
    versions: dict[Tensor, int] = {}
    copying: dict[Tensor, set[int]] = {}
    shared = _Shared({tensor: where[tensor].stream for tensor in reused})
    for node in graph.nodes:
        if node.is_view:
            continue
        stream = where[node].stream
        foreign = [s for s in node.sources if needs_copy(s, node, stream, where, streams)]
        if (
            not drafts
            or drafts[-1].stream != stream
            or node is cut
            or _frees_weights(foreign, drafts[-1])
        ):
            drafts.append(_Draft(stream))
            partners = _sharing_memory(stream, drafts, streams)
            drafts[-1].after |= partners | shared.borrowers(stream, *partners)
        draft = drafts[-1]
        if len(streams.backends) > 1:
            draft.after |= shared.waits(node, stream, foreign)
        for source in foreign:
            key = _key(stream, source, versions)
            if key not in copies:
                copies[key] = _local_leaf(source, streams.backends[stream].name, key[-1])
                origin = shared.writer(source.root, where)
                draft.copies.append(Crossing(source, copies[key], origin))
                copying.setdefault(source.root, set()).add(stream)
            draft.local[source] = copies[key]
        draft.nodes.append(node)
        for root in node.written_roots:
            versions[root] = versions.get(root, 0) + 1
            draft.after |= copying.pop(root, set()) - {stream}
    users = Counter(target for draft in drafts for target in set(draft.local.values()))
    # Inputs are copied in the order in which they lie, so that one transfer may take several.
    inputs = {tensor: i for i, tensor in enumerate(graph.inputs)}
    return tuple(
        Split(
            i,
            d.stream,
            _ordered(d, order),
            tuple(
                replace(c, shared=True) if users[c.target] > 1 else c
                for c in sorted(d.copies, key=lambda c: inputs.get(c.source, -1))
            ),
            d.local,
            frozenset(d.after),
        )
        for i, d in enumerate(drafts)
    )


class _Shared:
    """The last writer and the readers since, of memory that several streams use in place."""

    def __init__(self, writers: dict[Tensor, int]) -> None:
        self._writers = writers
        self._lent: dict[int, set[int]] = {}
        self._readers: defaultdict[Tensor, set[int]] = defaultdict(set)

    def waits(self, node: Tensor, stream: int, foreign: Sequence[Tensor]) -> set[int]:
        """Other streams for which `node` must wait.

        `node` reads their results in place, or overwrites memory that they read or wrote.
        """
        used = [s.root for s in node.sources if s not in foreign]
        written, writers, readers = node.written_roots, self._writers, self._readers
        found = {writers[root] for root in (*used, *written) if root in writers}
        found.discard(stream)
        for owner in found:
            self._lent.setdefault(owner, set()).add(stream)
        for root in written:
            found.update(readers.pop(root, ()))
            writers[root] = stream
        found.discard(stream)
        writers[node.root] = stream
        for root in used:
            readers[root].add(stream)
        return found

    def writer(self, root: Tensor, where: Choices) -> int:
        """The stream that wrote `root` last, or that holds it."""
        return self._writers.get(root, where[root].stream)

    def borrowers(self, stream: int, *partners: int) -> set[int]:
        """Streams that read memory of `stream` or of one of `partners` since the last call.

        `partners` are streams that compute in the same memory as `stream`.
        """
        found = {b for owner in (stream, *partners) for b in self._lent.pop(owner, ())}
        return found - {stream}


def _sharing_memory(stream: int, drafts: Sequence[_Draft], streams: Streams) -> set[int]:
    """Other streams that compute in the same memory, where each reuses what another has freed."""
    kinds = streams.buffer_types
    return {d.stream for d in drafts if kinds[d.stream] is kinds[stream]} - {stream}


def needs_copy(source: Tensor, node: Tensor, stream: int, where: Choices, streams: Streams) -> bool:
    """True if `stream` must read a copy of `source`; False for memory that `node` writes."""
    if where[source].stream == stream and streams.placed_type(source) is None:
        return False
    if source.root in node.written_roots:
        return False
    return not streams.reads(stream, source, where)


def _key(stream: int, source: Tensor, versions: Mapping[Tensor, int]) -> Key:
    version = versions.get(source.root, 0)
    return (stream, source.root, source.view_offset, source.ne, source.nb, version)


def _local_leaf(source: Tensor, device: str, version: int) -> Tensor:
    suffix = f"#{version}" if version else ""
    return Tensor(
        source.dtype,
        source.ne,
        source.nb,
        source.rank,
        flags=Flags.NONE,
        name=f"{device}#{source.label}{suffix}",
    )


def _frees_weights(foreign: Sequence[Tensor], draft: _Draft) -> bool:
    """True if a new split lets the memory of an earlier weight's copy be reused for the next."""
    return bool(draft.copies) and any(is_weight(s) and s not in draft.local for s in foreign)


def _ordered(draft: _Draft, order: Order) -> tuple[Tensor, ...]:
    wanted = tuple(order(draft.stream, tuple(draft.nodes)))
    if wanted == tuple(draft.nodes):
        return wanted
    check_order(draft.nodes, wanted)
    return wanted


def homes_of(
    tensors: Iterable[Tensor], splits: Sequence[Split], where: Choices
) -> dict[Tensor, int]:
    """For each of `tensors` the stream that computes it, wrote it last, or else holds it."""
    last = {
        root: split.stream
        for split in splits
        for node in split.nodes
        for root in (node.root, *node.written_roots)
    }
    return {t: last.get(t.root, where[t.root].stream) for t in tensors}


def local_sources(sources: Iterable[Tensor], local: Mapping[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """`sources`, with tensors of other streams replaced by their copies in `local`."""
    return tuple(local.get(s, s) for s in sources)
