"""`Explanation`: which device runs each node of a schedule, and why, as text and as data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tensorplug.device.buffer import BufferType
from tensorplug.device.observing import MAKERS
from tensorplug.graph.tensor import Tensor
from tensorplug.planning.assign import Streams
from tensorplug.planning.memory import Slot, stage_ends
from tensorplug.planning.planned import PlannedGraph
from tensorplug.planning.program import Program
from tensorplug.planning.split import Split
from tensorplug.planning.stages import label
from tensorplug.planning.timeline import surviving_tensors, timeline
from tensorplug.text import counted, human


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node: its split, its device, why it runs there, and the refusals of other devices.

    `fused` names the pattern and the last node of the node's group; it is empty without a group.
    `reads` are the numbers of the nodes whose results the node reads or overwrites. `note` is a
    remark of the device's plan about the node.
    """

    split: int
    node: str
    op: str
    result: str
    device: str
    cause: str
    refusals: dict[str, str]
    fused: str
    reads: tuple[int, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage of a split: the labels of its nodes and groups; nodes `first` to `last`, inclusive.

    The work of a stage may run in parallel; there is a barrier between two stages.
    """

    split: int
    work: tuple[str, ...]
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class UnfusedRow:
    """Nodes that match a pattern but that their device refuses to fuse, with its reason."""

    split: int
    pattern: str
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class CopyRow:
    """One copy between devices at the start of a split."""

    split: int
    tensor: str
    origin: str
    target: str
    bytes: int


@dataclass(frozen=True, slots=True)
class BufferRow:
    """A compute buffer: its buffer type, the first device that computes in it, its bytes."""

    memory: str
    device: str
    bytes: int


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """The place of a tensor in the compute buffer number `buffer`, and its lifetime.

    `offset` and `bytes` come from the allocator. The tensor holds its place from node `first` to
    node `last`, inclusive.
    """

    tensor: str
    buffer: int
    offset: int
    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of the program of a run: what the stream of `device` is asked for.

    `split` is None for steps that belong to the whole run.
    """

    device: str
    text: str
    split: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A schedule as text and data. `memory` is the bytes of compute buffers by buffer type.

    `steps` are the program of a run, or of a batch in flight if several may be. Nodes are numbered
    in the order of `nodes`. `places` says which tensor lies in which of
    `buffers`, and when. `stages` holds the stages of splits whose work may run in parallel.
    """

    nodes: tuple[NodeRow, ...]
    copies: tuple[CopyRow, ...]
    splits: tuple[str, ...]
    memory: dict[str, int]
    unfused: tuple[UnfusedRow, ...] = ()
    devices: tuple[str, ...] = ()
    buffers: tuple[BufferRow, ...] = ()
    places: tuple[PlaceRow, ...] = ()
    stages: tuple[StageRow, ...] = ()
    steps: tuple[StepRow, ...] = ()

    @property
    def summary(self) -> tuple[str, str]:
        """How many nodes and copied bytes, and the compute memory, in words."""
        memory = ", ".join(f"{name} {human(size)}" for name, size in self.memory.items())
        return (
            f"{counted(len(self.nodes), 'node')} in {counted(len(self.splits), 'split')}, "
            f"{human(sum(c.bytes for c in self.copies))} copied per run",
            f"compute memory: {memory or 'none'}",
        )

    def stages_of(self, split: int) -> list[StageRow]:
        """The stages of one split, in order."""
        return [stage for stage in self.stages if stage.split == split]

    def barriers(self, split: int) -> str:
        """The number of barriers of a split, in words; empty if its work runs in sequence."""
        stages = self.stages_of(split)
        if not stages:
            return ""
        work = counted(sum(len(stage.work) for stage in stages), "piece")
        return f"{counted(len(stages) - 1, 'barrier')} among {work} of work"

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as dictionaries, lists, strings and numbers."""
        return asdict(self)

    def to_html(self, title: str = "A schedule") -> str:
        """Return a self-contained HTML page: graph, devices, copies, memory over time."""
        return MAKERS.page(self, title)

    def __str__(self) -> str:
        lines = [*self.summary]
        for i, device in enumerate(self.splits):
            barriers = self.barriers(i)
            lines += ["", f"split {i} on {device}{barriers and ': '}{barriers}"]
            lines += [
                f"  copy {c.tensor} from {c.origin}: {human(c.bytes)}"
                for c in self.copies
                if c.split == i
            ]
            lines += _table([row for row in self.nodes if row.split == i])
        lines += ["", f"program: {counted(len(self.steps), 'step')}", *self._program()]
        return "\n".join(lines)

    def _program(self) -> Iterator[str]:
        """A line for each step: its number, its device, its text."""
        number = len(str(len(self.steps) - 1))
        device = max((len(row.device) for row in self.steps), default=0)
        for i, row in enumerate(self.steps):
            yield f"  {i:{number}}  {row.device:{device}}  {row.text}"


def explain(
    planned: PlannedGraph,
    program: Program,
    streams: Streams,
    pools: Sequence[BufferType],
    notes: Mapping[Tensor, str],
) -> Explanation:
    """Describe a planned graph and its program; `notes` are remarks of plans about their nodes."""
    names = [backend.name for backend in streams.backends]
    order = [node for split in planned.splits for node in split.nodes]
    reads = dict(zip(order, _reads(order), strict=True))
    fused = {
        node: f"{group.pattern.name} ending in {group.last.label}"
        for split in planned.splits
        for group in split.groups
        for node in group.nodes
    }
    nodes = tuple(
        NodeRow(
            split.index,
            node.label,
            node.op,
            f"{node.dtype.name}{list(node.shape)}",
            names[split.stream],
            planned.where[node].cause,
            streams.refusals(node),
            fused.get(node, ""),
            reads[node],
            notes.get(node, ""),
        )
        for split in planned.splits
        for node in split.nodes
    )
    copies = tuple(_copies(planned.splits, names, streams))
    memory = {
        pool.name: planned.memory.pool_size(i)
        for i, pool in enumerate(pools)
        if planned.memory.pool_size(i)
    }
    unfused = tuple(
        UnfusedRow(
            split.index, group.pattern.name, tuple(node.label for node in group.nodes), reason
        )
        for split in planned.splits
        for group, reason in split.refused
    )
    devices = tuple(names[s.stream] for s in planned.splits)
    buffers, places = _memory(planned, order, names, pools)
    stages = tuple(_stages(planned.splits))
    steps = tuple(StepRow(names[step.stream], step.title(names), step.split) for step in program)
    lanes = tuple(dict.fromkeys((*names, *(copy.origin for copy in copies))))
    return Explanation(
        nodes, copies, devices, memory, unfused, lanes, buffers, places, stages, steps
    )


def _copies(splits: Sequence[Split], names: Sequence[str], streams: Streams) -> Iterator[CopyRow]:
    for split in splits:
        for copy in split.copies:
            distant = streams.distant_type(copy.source)
            origin = distant.device.name if distant else names[copy.origin]
            tensor, target = copy.source.label, names[split.stream]
            yield CopyRow(split.index, tensor, origin, target, copy.source.nbytes)


def _stages(splits: Sequence[Split]) -> Iterator[StageRow]:
    first = 0
    for split in splits:
        for stage in split.stages:
            count = sum(1 if isinstance(work, Tensor) else len(work.nodes) for work in stage)
            yield StageRow(split.index, tuple(map(label, stage)), first, first + count - 1)
            first += count
        first += 0 if split.stages else len(split.nodes)


def _reads(order: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """For each node, the numbers of the nodes that last wrote the memory it reads or writes."""
    found: list[tuple[int, ...]] = []
    made: dict[Tensor, int] = {}
    for number, node in enumerate(order):
        used = (*(s.root for s in node.sources), *node.written_roots)
        found.append(tuple(sorted({made[root] for root in used if root in made})))
        for root in (node.root, *node.written_roots):
            made[root] = number
    return found


def _memory(
    planned: PlannedGraph,
    order: Sequence[Tensor],
    names: Sequence[str],
    pools: Sequence[BufferType],
) -> tuple[tuple[BufferRow, ...], tuple[PlaceRow, ...]]:
    """The compute buffers, and the places and lifetimes of the tensors in them."""
    graph, splits = planned.graph, planned.splits
    moments = timeline(graph, planned.where, splits, pools, planned.outside)
    numbers = {node: number for number, node in enumerate(order)}
    starts = _numbered([numbers.get(moment.tensor) for moment in moments], len(order))
    slots = planned.memory.slots
    first: dict[Tensor, int] = {}
    last: dict[Tensor, int] = {}
    for start, end, moment in zip(starts, stage_ends(moments), moments, strict=True):
        for tensor in (moment.tensor, *moment.also, *moment.reads):
            first.setdefault(tensor.root, start)
            last[tensor.root] = starts[end]
    last |= {tensor.root: len(order) - 1 for tensor in surviving_tensors(graph, splits)}
    holders: dict[Slot, Tensor] = {}
    for tensor in sorted(slots, key=first.__getitem__):
        former = holders.get(slots[tensor])
        if former is not None and last[former] >= first[tensor]:
            # In place: the new tensor takes over the memory of the one it is computed from.
            last[former] = max(first[tensor] - 1, first[former])
        holders[slots[tensor]] = tensor
    chunks = [
        (pool, i) for pool, sizes in enumerate(planned.memory.sizes) for i in range(len(sizes))
    ]
    buffers = tuple(
        BufferRow(pools[pool].name, names[pool], planned.memory.sizes[pool][i])
        for pool, i in chunks
    )
    index = {chunk: number for number, chunk in enumerate(chunks)}
    places = tuple(
        PlaceRow(
            tensor.label,
            index[slot.pool, slot.chunk],
            slot.offset,
            slot.size,
            first[tensor],
            last[tensor],
        )
        for tensor, slot in slots.items()
    )
    return buffers, places


def _numbered(numbers: Sequence[int | None], count: int) -> list[int]:
    """The node number of each moment; one without a number gets that of the next node."""
    found, ahead = [], max(count - 1, 0)
    for number in reversed(numbers):
        ahead = ahead if number is None else number
        found.append(ahead)
    return found[::-1]


def _table(rows: Sequence[NodeRow]) -> list[str]:
    cells = [(row.node, row.op, row.result, row.cause) for row in rows]
    widths = [max((len(cell[i]) for cell in cells), default=0) for i in range(3)]
    lines = []
    for row, cell in zip(rows, cells, strict=True):
        padded = "  ".join(text.ljust(width) for text, width in zip(cell, widths, strict=False))
        refused = "".join(f"; refused by {why}" for why in row.refusals.values())
        more = f"; {row.note}" if row.note else ""
        more += f"; fused into {row.fused}" if row.fused else ""
        lines.append(f"  {padded}  {row.cause}{more}{refused}")
    return lines
