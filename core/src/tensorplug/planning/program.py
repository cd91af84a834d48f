"""`Program`: the steps of a run as data: uploads, waits, copies, runs of plans, marks and reads.

A run, a batch in flight, a run with an observer and a run that resumes at a boundary are different
programs for the same loop, `tensorplug.running.run`. Streams are numbered as in the scheduler.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tensorplug.graph.tensor import Tensor
from tensorplug.planning.assign import Choices, is_weight
from tensorplug.planning.split import Crossing, Split, homes_of, local_sources


@dataclass(frozen=True, slots=True)
class Step:
    """One request to the stream with the number `stream`, for the split `split` if it has one."""

    stream: int
    split: int | None

    @property
    def words(self) -> str:
        """What the stream does: a verb for errors, after which the tensor or the split follows."""
        raise NotImplementedError

    @property
    def moved(self) -> Tensor | None:
        """The tensor that the step copies, if it copies one."""
        return None

    @property
    def origin(self) -> int | None:
        """The stream that sends, if the step is a copy."""
        return None

    @property
    def by_host(self) -> bool:
        """True if the host does it at once; False if it is queued on the stream."""
        return False

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The tensors that the step reads."""
        return ()

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """The tensors that the step writes."""
        return ()

    def title(self, names: Sequence[str]) -> str:
        """The step in a trace or in `explain()`; `names` are the names of the streams."""
        raise NotImplementedError

    @property
    def facts(self) -> Mapping[str, int]:
        """Sizes that a trace shows next to the title."""
        return {} if self.moved is None else {"bytes": self.moved.nbytes}


class Value(Enum):
    """Which value of an input is written to the memory of a batch."""

    GIVEN = "the value that the run was given"
    LAST = "the last value, in the memory of another batch"
    KEPT = "the value that an earlier attempt at the run computed"


@dataclass(frozen=True, slots=True)
class Upload(Step):
    """The host writes a value of `tensor` to the memory of the batch."""

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
        return f"{'copy' if self.value is Value.LAST else 'write'} {self.tensor.label}"


class Until(Enum):
    """Which work a Wait waits for."""

    DONE = "the host waits for all work that is queued on the stream"
    BATCH = "the host waits for the work of the batch on the stream"
    OTHER = "the stream waits for all work queued on another stream so far"
    FREE = "the stream waits for the streams that still use its memory for earlier batches"


@dataclass(frozen=True, slots=True)
class Wait(Step):
    """The host or the stream waits; with Until.OTHER the stream waits for the stream `other`."""

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

    If `expert_user` is given, only the experts that this node uses are copied. The stream `chooser`
    computes the ids of these experts.
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
        return f"copy {self.source.label}"


@dataclass(frozen=True, slots=True)
class Run(Step):
    """The stream computes a split, or a part of it that ends with a node for an observer.

    `local` maps tensors that the nodes read to copies of them. A `whole` split has a plan. After
    the last part, all work of the split is queued on the streams `ends`; `ends` is empty if the run
    does not note which splits are complete.
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
        used = (s for node in self.nodes for s in local_sources(node.sources, self.local))
        return tuple(t for t in dict.fromkeys(used) if t.root not in made)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return tuple(dict.fromkeys(r for n in self.nodes for r in (n.root, *n.written_roots)))

    def title(self, names: Sequence[str]) -> str:
        return f"{self.nodes[0].op} to {self.nodes[-1].op}"

    @property
    def facts(self) -> Mapping[str, int]:
        return {"nodes": len(self.nodes)}


class Waiters(Enum):
    """Which streams wait for a mark."""

    LENDERS = "the streams that compute in memory of `lenders`, which the stream has read"
    COPIES = "the streams that compute in memory from which data was copied for the split"
    BATCH = "the host, when it waits for the batch"


@dataclass(frozen=True, slots=True)
class Signal(Step):
    """A mark is recorded after the work of the stream so far; `waiters` wait for it.

    With Waiters.COPIES the host waits for readers without events instead, if they read memory of
    `lenders`, in which the batch computes. With `if_idle` the mark of a batch is left out if the
    stream has copied nothing for it.
    """

    waiters: Waiters
    lenders: tuple[int, ...] = ()
    if_idle: bool = False

    @property
    def words(self) -> str:
        return (
            "waits for readers of memory of" if self.waiters is Waiters.COPIES else "marks work of"
        )

    def title(self, names: Sequence[str]) -> str:
        return "mark"


class To(Enum):
    """Where a value goes, and when."""

    HOST = "to the host, now: the host has waited for the stream"
    LATER = "to the host, which has the value when it has waited for the batch"
    OBSERVER = "to the observer of the run, now"


@dataclass(frozen=True, slots=True)
class Read(Step):
    """The value of `tensor` is read to the host."""

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
        return f"read {self.tensor.label}"


Program = tuple[Step, ...]


def settling(streams: int) -> Program:
    """The host waits for all queued work of all streams."""
    return tuple(Wait(i, None, Until.DONE) for i in range(streams))


def reading(homes: Mapping[Tensor, int], streams: int, queueing: Collection[int] = ()) -> Program:
    """The host waits for all queued work and reads outputs; `homes` are their streams."""
    before, after = reads_of(homes, queueing)
    return (*before, *settling(streams), *after)


def reads_of(homes: Mapping[Tensor, int], queueing: Collection[int]) -> tuple[Program, Program]:
    """The reads of outputs that are queued before the host waits, and those after it.

    `homes` are the streams of the outputs. Streams of `queueing` read before: the host allocates
    while they compute, and waits once. A remote device sends the values with its answer.
    """
    before: list[Step] = []
    after: list[Step] = []
    for output, stream in homes.items():
        if stream in queueing and output.is_contiguous:
            before.append(Read(stream, None, output, To.LATER))
        else:
            after.append(Read(stream, None, output))
    return tuple(before), tuple(after)


def run_program(
    splits: Sequence[Split], where: Choices, *, skipped: Sequence[Split] = ()
) -> Program:
    """The steps of one run that has all streams for itself.

    The `skipped` splits were computed before: only those of their copies are made that `splits`
    read.
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
        steps += _before(split, (*skipped, *splits), where)
        steps.append(Run(split.stream, split.index, split.nodes, split.local, ends=tuple(ends)))
    return tuple(steps)


def flight_program(
    splits: Sequence[Split],
    where: Choices,
    homes: Mapping[Tensor, int],
    writers: Mapping[Tensor, frozenset[int]],
    sharers: Sequence[Sequence[int]],
) -> Program:
    """The steps of one batch in flight next to others, with the reads of its outputs.

    `homes` are the streams of the outputs, `writers` the streams that use placed tensors which the
    graph writes. `sharers` are, for each stream, the streams that compute in the same memory.
    """
    steps: list[Step] = []
    busy = {split.stream for split in splits}
    for split in splits:
        own = split.stream
        steps.append(Wait(own, split.index, Until.FREE))
        steps += _before(split, splits, where)
        origins = {copy.origin for copy in split.copies if copy.source.nbytes}
        if origins:
            lenders = tuple(i for i in sorted(origins) if busy.intersection(sharers[i]))
            steps.append(Signal(own, split.index, Waiters.COPIES, lenders))
        steps.append(Run(own, split.index, split.nodes, split.local))
        if split.after or len(sharers[own]) > 1:
            steps.append(Signal(own, split.index, Waiters.LENDERS, tuple(sorted(split.after))))
    for output, home in homes.items():
        busy.add(home)
        steps.append(Read(home, None, output, To.LATER))
        waiting = set(writers.get(output.root, ())) - {home}
        if len(sharers[home]) > 1:
            waiting.add(home)
        if waiting and output.nbytes:
            steps.append(Signal(home, None, Waiters.LENDERS, tuple(sorted(waiting))))
    copying = {copy.origin for split in splits for copy in split.copies}
    steps += (Signal(i, None, Waiters.BATCH, if_idle=i not in busy) for i in sorted(busy | copying))
    return tuple(steps)


def _before(split: Split, splits: Sequence[Split], where: Choices) -> Iterator[Step]:
    """The waits of a split of `splits`, and the copies that it reads."""
    for other in sorted(split.after):
        yield Wait(split.stream, split.index, Until.OTHER, other)
    for copy in split.copies:
        if copy.source.nbytes:
            made = (split.stream, split.index, copy.source, copy.target, copy.origin)
            ids = _expert_ids(copy, split)
            if ids is None:
                yield Copy(*made)
            else:
                earlier = [other for other in splits if other.index < split.index]
                yield Copy(*made, split.nodes[0], homes_of((ids,), earlier, where)[ids])


def _expert_ids(copy: Crossing, split: Split) -> Tensor | None:
    """The ids of the experts to copy, if `copy` copies weights of experts from host memory.

    Only the first node of `split` may read such a copy.
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
    """`program` with each split cut after the nodes that an observer wants, and reads of them."""
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
