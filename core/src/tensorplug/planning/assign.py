"""Assignment of nodes to backends: pure passes, each of which adds choices with their causes.

The streams of a scheduler are numbered by priority: 0 has the highest. The last one holds the
inputs and is the fallback for nodes that no other stream takes.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tensorplug.device.backend import Backend
from tensorplug.device.buffer import BufferType, BufferUsage
from tensorplug.errors import GraphError, Refusal, Unsupported
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Place, Tensor

SMALL_WEIGHTS = frozenset({"rope", "flash_attn_ext"})
"""Ops that do not follow their weights (frequency factors, sinks), which are small."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The number of the stream that computes or holds a tensor, and why."""

    stream: int
    cause: str


Choices = dict[Tensor, Choice]


class Streams:
    """The streams of a scheduler by number, with a cache of what they refuse."""

    def __init__(
        self,
        backends: Sequence[Backend],
        buffer_types: Sequence[BufferType],
        moved: Mapping[Tensor, Place],
    ) -> None:
        """`moved` maps persistent tensors to their new places, if not at their own places."""
        self.backends = backends
        self.buffer_types = buffer_types
        self.moved = moved
        self._answers: dict[tuple[int, Tensor], Refusal | None] = {}
        self._accepts: dict[tuple[int, BufferType], bool] = {}

    @property
    def fallback(self) -> int:
        """The number of the last stream."""
        return len(self.backends) - 1

    def forget(self) -> None:
        """Drop cached answers about the nodes of earlier graphs."""
        self._answers.clear()

    def refusal(self, stream: int, node: Tensor) -> Refusal | None:
        """Why `stream` cannot compute `node`; None if it can."""
        key = (stream, node)
        if key not in self._answers:
            placed = {s: t for s in node.sources if (t := self.placed_type(s)) is not None}
            self._answers[key] = self.backends[stream].device.refuses(node, placed)
        return self._answers[key]

    def can(self, stream: int, node: Tensor) -> bool:
        """True if `stream` can compute `node`."""
        return self.refusal(stream, node) is None

    def accepts(self, stream: int, kind: BufferType) -> bool:
        """True if `stream` reads and writes memory of type `kind` without copies."""
        key = (stream, kind)
        if key not in self._accepts:
            self._accepts[key] = self.backends[stream].device.supports_buffer_type(kind)
        return self._accepts[key]

    def placed_type(self, tensor: Tensor) -> BufferType | None:
        """The type of the buffer in which `tensor` is placed, or None if it has no memory yet."""
        root = tensor.root
        place = self.moved.get(root, root.place) if self.moved else root.place
        return None if place is None else place.buffer.type

    def distant_type(self, tensor: Tensor) -> BufferType | None:
        """As `placed_type`, but None where a stream computes in that memory."""
        kind = self.placed_type(tensor)
        if kind is None or any(self.accepts(i, kind) for i in range(len(self.backends))):
            return None
        return kind

    def memory_of(self, tensor: Tensor, where: Mapping[Tensor, Choice]) -> BufferType | None:
        """The type of the memory that `tensor` has or will get; None if not decided yet."""
        placed = self.placed_type(tensor)
        if placed is not None:
            return placed
        choice = where.get(tensor) or where.get(tensor.root)
        return None if choice is None else self.buffer_types[choice.stream]

    def reads(self, stream: int, tensor: Tensor, where: Mapping[Tensor, Choice]) -> bool:
        """True if `stream` can read `tensor` in place, without a copy."""
        kind = self.memory_of(tensor, where)
        return kind is not None and self.accepts(stream, kind)

    def refusals(self, node: Tensor) -> dict[str, str]:
        """The reason of every backend that refuses `node`, by the backend's name."""
        answers = ((b.name, self.refusal(i, node)) for i, b in enumerate(self.backends))
        return {name: refusal.reason for name, refusal in answers if refusal is not None}


def assign(graph: Graph, streams: Streams, pins: Mapping[Tensor, int], *, offload: bool) -> Choices:
    """Choose a backend for every tensor of `graph`.

    `pins` are the user's choices. With `offload`, a node whose weights lie with the fallback
    backend may go to another backend, which then copies the weights. Raises Unsupported if no
    backend can compute a node, GraphError for a view whose root is not in the graph.
    """
    where = pinned(pins, streams)
    fixed = frozenset(where)
    where = anchor_placed((*graph.leafs, *graph.nodes), where, streams)
    where = anchor_inputs(graph.inputs, where, streams)
    where = follow_weights(graph.nodes, where, streams, offload=offload)
    ahead, back = graph.nodes, graph.nodes[::-1]
    accelerated = range(streams.fallback)
    everyone = range(len(streams.backends))
    for nodes, over in (
        (ahead, accelerated),
        (back, accelerated),
        (ahead, everyone),
        (back, everyone),
    ):
        where = spread(nodes, where, streams.can, over)
    where = choose_best(graph.nodes, where, streams)
    where = upgrade(graph.nodes, where, streams, fixed)
    where = follow_roots(graph.nodes, where, streams, fixed)
    return follow_neighbours(graph, where, streams)


def pinned(pins: Mapping[Tensor, int], streams: Streams) -> Choices:
    """The user's choices, which no later pass changes. The pin of a view is one of its root.

    Raises Unsupported with the refusal, GraphError if a view and its root have different pins.
    """
    chosen: dict[Tensor, int] = {}
    for tensor, stream in pins.items():
        node = tensor.root if tensor.is_view else tensor
        if node is not tensor and node.is_leaf:
            continue
        if chosen.setdefault(node, stream) != stream:
            raise GraphError(
                f"{tensor}: is pinned to {streams.backends[stream].name}, and {node}, in the same "
                f"memory, to {streams.backends[chosen[node]].name}; pin {node} only"
            )
    for node, stream in chosen.items():
        refusal = streams.refusal(stream, node)
        if refusal is not None:
            raise Unsupported(
                f"{node}: pinned to {streams.backends[stream].name}, which refuses it: "
                f"{refusal.reason}"
            )
    return {node: Choice(stream, "pinned by the user") for node, stream in chosen.items()}


def anchor_placed(tensors: Iterable[Tensor], where: Choices, streams: Streams) -> Choices:
    """Assign placed tensors to the first backend that works in their memory and supports them."""
    found = dict(where)
    for tensor in tensors:
        kind = streams.placed_type(tensor)
        if kind is None or tensor in found:
            continue
        willing = [i for i in range(len(streams.backends)) if streams.accepts(i, kind)]
        able = next((i for i in willing if streams.can(i, tensor)), None)
        if able is not None:
            found[tensor] = Choice(able, f"lies in {kind.name}")
        elif tensor.writes or not tensor.is_leaf:
            raise _stranded(tensor, kind, willing, streams)
        # A leaf in memory that no backend reads is copied to the backends that need it.
    return found


def _stranded(
    tensor: Tensor, kind: BufferType, willing: Sequence[int], streams: Streams
) -> Unsupported:
    refusals = streams.refusals(tensor)
    why = "; ".join(refusals[streams.backends[i].name] for i in willing)
    placed = "" if tensor.root is tensor else f" of {tensor.root.label}"
    missing = f"the scheduler has no stream of {kind.device.name}; give it one"
    return Unsupported(
        f"{tensor}{placed}: its memory is {kind.name}, and no backend that works there can compute "
        f"it: {why or missing}"
    )


def anchor_inputs(inputs: Iterable[Tensor], where: Choices, streams: Streams) -> Choices:
    """Assign inputs to the last backend: the user writes them into its memory."""
    new = {t: Choice(streams.fallback, "input") for t in inputs if t not in where}
    return {**where, **new}


def follow_weights(
    nodes: Iterable[Tensor], where: Choices, streams: Streams, *, offload: bool
) -> Choices:
    """Assign a node to the backend of its first weight, or, with `offload`, to a higher one.

    A node is offloaded from the fallback to the first backend whose device says that the work is
    worth copying the weights (`Device.offload`).
    """
    found = dict(where)
    for node in nodes:
        if node in found or node.op in SMALL_WEIGHTS or node.is_view:
            continue
        weight = next((s for s in node.sources if is_weight(s)), None)
        if weight is None:
            continue
        choice = _with_weight(node, weight, streams)
        if choice is not None and choice.stream == streams.fallback and offload:
            choice = _offloaded(node, weight, streams) or choice
        if choice is not None:
            found[node] = choice
    return found


def is_weight(tensor: Tensor) -> bool:
    """True if `tensor` lies in a buffer with the usage WEIGHTS."""
    place = tensor.root.place
    return place is not None and place.buffer.usage is BufferUsage.WEIGHTS


def _with_weight(node: Tensor, weight: Tensor, streams: Streams) -> Choice | None:
    kind = streams.placed_type(weight)
    for i in range(len(streams.backends)):
        if kind is not None and streams.accepts(i, kind) and streams.can(i, node):
            return Choice(i, f"its weights {weight.label} lie in {kind.name}")
    return None


def _offloaded(node: Tensor, weight: Tensor, streams: Streams) -> Choice | None:
    kind = streams.placed_type(weight)
    if kind is None or not kind.is_host:
        return None
    for i in range(streams.fallback):
        if streams.backends[i].device.offload(node) and streams.can(i, node):
            return Choice(i, "worth copying its weights")
    return None


def spread(
    nodes: Iterable[Tensor],
    where: Choices,
    can: Callable[[int, Tensor], bool],
    over: Container[int],
) -> Choices:
    """Let each backend in `over` claim the unassigned nodes that follow its nodes in `nodes`."""
    found = dict(where)
    current: int | None = None
    for node in nodes:
        if node.is_view:
            continue
        if node in found:
            current = found[node].stream if found[node].stream in over else None
        elif current is not None and can(current, node):
            found[node] = Choice(current, "next to other work of its backend")
    return found


def choose_best(nodes: Iterable[Tensor], where: Choices, streams: Streams) -> Choices:
    """Assign each remaining node to the backend that reads most of its sources in place."""
    found = dict(where)
    for node in nodes:
        if node in found or node.is_view:
            continue
        able = [i for i in range(len(streams.backends)) if streams.can(i, node)]
        if not able:
            raise Unsupported(_no_backend(node, streams))
        readable = {i: sum(streams.reads(i, s, found) for s in node.sources) for i in able}
        best = max(able, key=lambda i: (readable[i], -i))
        found[node] = Choice(
            best, f"reads {readable[best]} of {len(node.sources)} sources in place"
        )
    return found


def _no_backend(node: Tensor, streams: Streams) -> str:
    reasons = "; ".join(streams.refusals(node).values())
    return (
        f"{node}: no backend can compute it: {reasons}; add a backend that can, such as cpu, as "
        "the last one"
    )


def upgrade(
    nodes: Iterable[Tensor], where: Choices, streams: Streams, fixed: Container[Tensor]
) -> Choices:
    """Move a node to a higher-priority backend with the same memory that reads all its sources."""
    found = dict(where)
    for node in nodes:
        if node.is_view or node in fixed:
            continue
        mine = found[node].stream
        for other in range(mine):
            shares = streams.buffer_types[other] is streams.buffer_types[mine]
            if (
                shares
                and streams.can(other, node)
                and all(streams.reads(other, s, found) for s in node.sources)
            ):
                found[node] = Choice(other, "shares memory with a lower backend")
                break
    return found


def follow_roots(
    nodes: Iterable[Tensor], where: Choices, streams: Streams, fixed: Container[Tensor]
) -> Choices:
    """Move each write to the backend whose memory it writes.

    Raises Unsupported if that refuses, or if a write in `fixed` does not reach the memory.
    """
    found = dict(where)
    for node in nodes:
        if not node.writes or node.root.place is not None or node.root not in found:
            continue
        home = found[node.root].stream
        if found[node].stream == home:
            continue
        if node in fixed:
            pin, computed = (streams.backends[i].name for i in (found[node].stream, home))
            raise Unsupported(
                f"{node}: pinned to {pin}, but it writes into {node.root}, which is computed on "
                f"{computed}; pin both to one"
            )
        refusal = streams.refusal(home, node)
        if refusal is not None:
            raise Unsupported(
                f"{node}: writes into {node.root}, which is computed on "
                f"{streams.backends[home].name}, and that refuses the write: {refusal.reason}; pin "
                f"{node.root}"
            )
        found[node] = Choice(home, "writes into memory of this backend")
    for node in nodes:
        own = (node.root,) if node in fixed and node.writes else ()
        for tensor in (*own, *node.also_writes):
            _check_reachable(node, tensor, found, streams)
    return found


def _check_reachable(node: Tensor, tensor: Tensor, where: Choices, streams: Streams) -> None:
    """Raise Unsupported unless the backend of `node` reaches the memory of `tensor`.

    `node` writes `tensor` in addition to its own root.
    """
    here, home, kind = where[node].stream, where.get(tensor.root), streams.placed_type(tensor)
    if kind is not None:
        reachable, place = streams.accepts(here, kind), kind.name
    elif home is not None:
        reachable, place = home.stream == here, streams.backends[home.stream].name
    else:
        return
    if not reachable:
        raise Unsupported(
            f"{node}: runs on {streams.backends[here].name} and writes into {tensor}, which lies "
            f"in {place}; place both in memory of one device"
        )


def follow_neighbours(graph: Graph, where: Choices, streams: Streams) -> Choices:
    """Assign views to the backend of their root, and leafs to the backend of their first reader."""
    found = dict(where)
    for node in graph.nodes:
        for source in node.sources:
            if source.is_leaf and source not in found:
                near = found.get(node) or Choice(streams.fallback, "")
                found[source] = Choice(near.stream, "with its first reader")
        if node.is_view and node not in found:
            home = found.get(node.root)
            if home is None:
                raise GraphError(f"{node}: a view of {node.root}, which is nowhere in the graph")
            found[node] = Choice(home.stream, "a view")
    for leaf in graph.leafs:
        found.setdefault(leaf, Choice(streams.fallback, "unused"))
    return found
