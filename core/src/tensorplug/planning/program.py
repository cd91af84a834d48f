"""`Step`s: what the streams of a schedule are asked for, one after another, as data.

A run, a batch in flight, a run with an observer and one that goes on behind a boundary are
different programs for the same loop, `tensorplug.running.run`. Streams go by their index.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tensorplug.graph.tensor import Tensor
from tensorplug.planning.assign import Choices, is_weight
from tensorplug.planning.split import Copy as Crossing
from tensorplug.planning.split import Split, localised


def label(tensor: Tensor) -> str:
    """A tensor's name, or its op and number where it has none."""
    return tensor.name or f"{tensor.op} #{tensor.serial}"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that `stream` is asked for; `split` is the split for which that is done."""

    stream: int
    split: int | None

    @property
    def words(self) -> str:
        """What the stream does, in a sentence that begins with its name and ends with `tensor`."""
        raise NotImplementedError

    @property
    def moved(self) -> Tensor | None:
        """The tensor that is copied, if any."""
        return None

    @property
    def origin(self) -> int | None:
        """The stream from whose work a copy comes."""
        return None

    @property
    def by_host(self) -> bool:
        """Whether the host does it at once; else it is queued on the stream."""
        return False

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """What it reads."""
        return ()

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """What it writes."""
        return ()

    def title(self, names: Sequence[str]) -> str:
        """The step in a trace or a listing; `names` are those of the streams."""
        raise NotImplementedError

    @property
    def facts(self) -> Mapping[str, int]:
        """Sizes that a trace shows beside the title."""
        return {} if self.moved is None else {"bytes": self.moved.nbytes}


class Value(Enum):
    """Which value of an input is put into the memory of a batch."""

    GIVEN = "the one that the run was given"
    LAST = "the last one, which lies in the memory of another batch"
    KEPT = "the one that an earlier attempt of the run left"


@dataclass(frozen=True, slots=True)
class Upload(Step):
    """The host puts a value of `tensor` into the memory of the batch."""

    tensor: Tensor
    value: Value = Value.GIVEN

    @property
    def words(self) -> str:
        return "copies" if self.value is Value.LAST else "writes"

    @property
    def moved(self) -> Tensor:
        return self.tensor

    @property
    def by_host(self) -> bool:
        return True

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return (self.tensor,)

    def title(self, names: Sequence[str]) -> str:
        return f"{'copy' if self.value is Value.LAST else 'write'} {label(self.tensor)}"


class Until(Enum):
    """What is waited for."""

    DONE = "the host waits for all that is queued on the stream"
    BATCH = "the host waits for what the batch queued on the stream"
    OTHER = "the stream waits for all that is queued on another one so far"
    FREE = "the stream waits for all who still use its memory for earlier batches"


@dataclass(frozen=True, slots=True)
class Wait(Step):
    """The host or the stream waits; `other` is the stream that is waited for with Until.OTHER."""

    until: Until
    other: int | None = None

    @property
    def words(self) -> str:
        if self.until is Until.DONE:
            return "waits for queued work"
        return "waits for a batch" if self.until is Until.BATCH else "brings what is read by"

    @property
    def by_host(self) -> bool:
        return self.until in (Until.DONE, Until.BATCH)

    def title(self, names: Sequence[str]) -> str:
        if self.other is not None:
            return f"wait for {names[self.other]}"
        if self.until is Until.FREE:
            return "wait for earlier batches"
        return "wait for a batch" if self.until is Until.BATCH else "wait"


@dataclass(frozen=True, slots=True)
class Copy(Step):
    """`source` is copied to `target`, in memory of the stream.

    Where `expert_user` is given, only the experts go that this node uses; its ids are made on the
    stream `chooser`.
    """

    source: Tensor
    target: Tensor
    sender: int
    expert_user: Tensor | None = None
    chooser: int | None = None

    @property
    def words(self) -> str:
        return "copies"

    @property
    def moved(self) -> Tensor:
        return self.source

    @property
    def origin(self) -> int:
        return self.sender

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return (self.source,)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return (self.target,)

    def title(self, names: Sequence[str]) -> str:
        return f"copy {label(self.source)}"


@dataclass(frozen=True, slots=True)
class Run(Step):
    """The stream computes a split, or the part of it that ends where an observer looks.

    `local` maps what the nodes read to the copies that they read. A `whole` split has a plan. With
    the last part of a split all is queued on the streams `ends` that the split needs; empty where
    nobody asks whether a split is done.
    """

    nodes: tuple[Tensor, ...]
    local: Mapping[Tensor, Tensor]
    whole: bool = True
    ends: tuple[int, ...] = ()

    @property
    def words(self) -> str:
        return "runs"

    @property
    def reads(self) -> tuple[Tensor, ...]:
        made = set(self.nodes)
        used = (s for node in self.nodes for s in localised(node.sources, self.local))
        return tuple(t for t in dict.fromkeys(used) if t.root not in made)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return tuple(dict.fromkeys(r for n in self.nodes for r in (n.root, *n.written_roots)))

    def title(self, names: Sequence[str]) -> str:
        return f"{self.nodes[0].op} to {self.nodes[-1].op}"

    @property
    def facts(self) -> Mapping[str, int]:
        return {"nodes": len(self.nodes)}


class Mark(Enum):
    """Who waits for a mark."""

    LENDERS = "all that compute in memory of `lenders`, which the stream has read"
    COPIES = "all that compute in memory that was copied for the split, by whichever stream"
    BATCH = "who waits for the batch"


@dataclass(frozen=True, slots=True)
class Signal(Step):
    """The stream leaves a mark behind its work so far, for `whom`.

    With Mark.COPIES a reader without events is waited for instead if its lender is one of
    `lenders`, in whose memory the batch computes. A mark for a batch is left out `if_idle` and the
    stream turned out to copy nothing.
    """

    whom: Mark
    lenders: tuple[int, ...] = ()
    if_idle: bool = False

    @property
    def words(self) -> str:
        return "waits for who reads memory of" if self.whom is Mark.COPIES else "marks work of"

    def title(self, names: Sequence[str]) -> str:
        return "mark"


class To(Enum):
    """Who reads a value."""

    HOST = "the host, now: the stream was waited for"
    LATER = "the host, when it has waited for the batch"
    OBSERVER = "the observer of the run, now"


@dataclass(frozen=True, slots=True)
class Read(Step):
    """The value of `tensor` goes to the host."""

    tensor: Tensor
    to: To = To.HOST

    @property
    def words(self) -> str:
        return "reads"

    @property
    def moved(self) -> Tensor:
        return self.tensor

    @property
    def by_host(self) -> bool:
        return self.to is not To.LATER

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return (self.tensor,)

    def title(self, names: Sequence[str]) -> str:
        return f"read {label(self.tensor)}"


Program = tuple[Step, ...]


def settling(streams: int) -> Program:
    """The host waits for all queued work of all streams."""
    return tuple(Wait(i, None, Until.DONE) for i in range(streams))


def reading(outputs: Iterable[Tensor], where: Choices, streams: int) -> Program:
    """The host waits for all queued work and reads `outputs`."""
    reads = (Read(where[t].stream, None, t) for t in dict.fromkeys(outputs))
    return (*settling(streams), *reads)


def run_program(
    splits: Sequence[Split], where: Choices, *, skipped: Sequence[Split] = ()
) -> Program:
    """One run after which all streams are waited for.

    Of the `skipped` splits, which were computed before, only copies are made that `splits` read.
    """
    used = {target for split in splits for target in split.local.values()}
    steps: list[Step] = [
        Copy(split.stream, None, copy.source, copy.target, copy.origin)
        for split in skipped
        for copy in split.copies
        if copy.target in used and copy.source.nbytes
    ]
    for split in splits:
        ends = dict.fromkeys((split.stream, *(copy.origin for copy in split.copies)))
        steps += _before(split, where)
        steps.append(Run(split.stream, split.index, split.nodes, split.local, ends=tuple(ends)))
    return tuple(steps)


def flight_program(
    splits: Sequence[Split],
    where: Choices,
    outputs: Iterable[Tensor],
    sharers: Sequence[Sequence[int]],
) -> Program:
    """One batch in flight beside others, and the reading of its outputs.

    `sharers` are, for each stream, all that compute in the same memory.
    """
    steps: list[Step] = []
    busy = {split.stream for split in splits}
    for split in splits:
        own = split.stream
        steps.append(Wait(own, split.index, Until.FREE))
        steps += _before(split, where)
        origins = {copy.origin for copy in split.copies if copy.source.nbytes}
        if origins:
            lenders = tuple(i for i in sorted(origins) if busy.intersection(sharers[i]))
            steps.append(Signal(own, split.index, Mark.COPIES, lenders))
        steps.append(Run(own, split.index, split.nodes, split.local))
        if split.after or len(sharers[own]) > 1:
            steps.append(Signal(own, split.index, Mark.LENDERS, tuple(sorted(split.after))))
    # Each once: memory that a stream still writes must not be given up for that of a second read.
    for output in dict.fromkeys(outputs):
        home = where[output].stream
        busy.add(home)
        steps.append(Read(home, None, output, To.LATER))
        if len(sharers[home]) > 1 and output.nbytes:
            steps.append(Signal(home, None, Mark.LENDERS, (home,)))
    copying = {copy.origin for split in splits for copy in split.copies}
    steps += (Signal(i, None, Mark.BATCH, if_idle=i not in busy) for i in sorted(busy | copying))
    return tuple(steps)


def _before(split: Split, where: Choices) -> Iterator[Step]:
    """What a split waits for, and the copies that it reads."""
    for other in sorted(split.after):
        yield Wait(split.stream, split.index, Until.OTHER, other)
    for copy in split.copies:
        if copy.source.nbytes:
            made = (split.stream, split.index, copy.source, copy.target, copy.origin)
            ids = _expert_ids(copy, split)
            chooser = None if ids is None else where[ids.root].stream
            yield Copy(*made, None if ids is None else split.nodes[0], chooser)


def _expert_ids(copy: Crossing, split: Split) -> Tensor | None:
    """The ids of the experts that are used, where `copy` brings host weights by expert.

    Only the first node of `split` may read them then.
    """
    first = split.nodes[0]
    by_expert = (
        first.op == "mul_mat_id"
        and first.operands[0] is copy.source
        and is_weight(copy.source)
        and not copy.shared
        and sum(copy.source in node.sources for node in split.nodes) == 1
    )
    return first.operands[2] if by_expert else None


def observed(program: Program, wants: Callable[[Tensor], bool]) -> Program:
    """`program` with each split cut behind the nodes that an observer wants, which it reads."""
    steps: list[Step] = []
    for step in program:
        if isinstance(step, Run):
            steps += _cut(step, wants)
        else:
            steps.append(step)
    return tuple(steps)


def _cut(run: Run, wants: Callable[[Tensor], bool]) -> Iterator[Step]:
    start = 0
    for i, node in enumerate(run.nodes, 1):
        wanted = not node.is_view and wants(node)
        last = i == len(run.nodes)
        if wanted or last:
            ends = run.ends if last else ()
            yield replace(run, nodes=run.nodes[start:i], whole=False, ends=ends)
            start = i
        if wanted:
            yield Read(run.stream, run.split, node, To.OBSERVER)
