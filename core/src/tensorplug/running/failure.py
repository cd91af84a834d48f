"""`Attempt`: how far one run came, and the error that describes it if a device fails."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tensorplug.device.backend import Backend
from tensorplug.device.device import Device
from tensorplug.errors import (
    DeviceError,
    DeviceHung,
    DeviceLost,
    OutOfMemory,
    RunFailed,
    RunState,
    TensorplugError,
)
from tensorplug.graph.tensor import Tensor
from tensorplug.planning.program import Copy, Program, Step, Wait
from tensorplug.planning.split import Split
from tensorplug.running.lost import MemoryLost, persistent
from tensorplug.running.run import FAILURES, NO_VALUES, RunContext, StepFailed
from tensorplug.text import human

if TYPE_CHECKING:
    from tensorplug.running.recovery.restart import Restart
    from tensorplug.running.runs import Runs
    from tensorplug.running.schedule import Schedule

CAUSES: tuple[tuple[type[TensorplugError], str, str], ...] = (
    (DeviceLost, "gone", ""),
    (DeviceHung, "hung", "what it may still use stays reserved: "),
    (OutOfMemory, "out of memory", "use a smaller batch or context, or put layers elsewhere, or "),
    (DeviceError, "failed", "run again, or "),
)
"""Kinds of errors, narrow ones first, each with a word for it and a remedy."""

SHOWN = 4
"""The number of pieces of memory that the text of a failure names; RunFailed.state has all."""

WITHOUT_IT = "make a scheduler without {names}, or one with on_failure='replan'"


@dataclass(eq=False, repr=False, slots=True)
class Attempt:
    """One attempt at a run, or at another request of a scheduler to its devices.

    As a context manager, it turns the error of a device into RunFailed, after it has waited for all
    streams that still answer.
    """

    runs: "Runs"
    schedule: "Schedule | None" = None
    kinds: tuple[type[TensorplugError], ...] = FAILURES
    """The errors that become RunFailed."""
    inputs: Mapping[Tensor, Any] = field(default_factory=dict)
    """The inputs to upload; the values of all inputs once a run that may be repeated began."""
    in_flight: bool = False
    """True if other batches may be queued before this one is complete."""
    index: int | None = None
    """The index of its batch; None until a batch is chosen."""
    start: "Restart | None" = None
    """The boundary from which it resumes; None if it begins with the inputs."""
    program: Program = ()
    """What it runs after its uploads."""
    skipped: int = 0
    """The number of splits before `start`, which do not run."""
    context: RunContext = field(default_factory=RunContext)
    """What its steps share."""
    step: Step | None = None
    """The step at which the failure surfaced; None if it surfaced before the first step."""
    serial: int = 0
    """The number of the last run when this one failed."""
    completed: int = 0
    """The number of splits known to be complete when it failed."""
    queued: int = 0
    """The number of splits that had been queued completely when it failed."""
    failed: tuple[Device, ...] = ()
    disturbed: set[Device] = field(default_factory=set)
    """Devices whose queued work is not complete: they failed, or waited for one that failed."""
    failure: RunFailed | None = None
    _waited: Mapping[int, list[Backend]] = field(default_factory=dict)

    def next(self, start: "Restart | None") -> "Attempt":
        """The attempt that follows this one, from `start` or from the inputs."""
        return Attempt(
            self.runs, self.schedule, self.kinds, self.inputs, self.in_flight, self.index, start
        )

    def forget_memory(self) -> None:
        """Drop device memory: a hung device keeps what is referenced, and errors keep frames."""
        self.context.forget_memory()
        if self.runs.recovery is None:
            self.inputs = NO_VALUES

    @property
    def split(self) -> int | None:
        """The split that was being queued."""
        return None if self.step is None else self.step.split

    @property
    def begun(self) -> int:
        """The number of splits that were begun or skipped; only these may have changed memory."""
        return self.context.begun

    def nodes(self) -> list[Tensor]:
        """The nodes that may have been computed since the run began with its inputs, in order."""
        if self.schedule is None:
            return []
        begun = {node for split in self.schedule.splits[: self.begun] for node in split.nodes}
        if self.start is not None:
            begun |= self.start.done | self.start.begun
        return [node for node in self.schedule.graph.nodes if node in begun]

    def nodes_on(self, devices: Collection[Device]) -> Iterator[Tensor]:
        """The nodes that any of `devices` may have begun."""
        splits = () if self.schedule is None else self.schedule.splits[self.skipped : self.begun]
        for split in splits:
            if self.runs.fleet.backends[split.stream].device in devices:
                yield from split.nodes

    def uses(self, devices: Collection[Device]) -> bool:
        """True if any of `devices` computes, holds or copies anything for the attempt."""
        if self.schedule is None:
            return False
        homes = map(self.schedule.home_of, self.schedule.graph.outputs)
        return any(self._uses(split, devices) for split in self.schedule.splits) or any(
            home.device in devices for home in homes
        )

    def _uses(self, split: Split, devices: Collection[Device]) -> bool:
        return any(stream.device in devices for stream in self._streams(split))

    def _streams(self, split: Split) -> list[Backend]:
        """The stream that computes a split, and the streams from which it copies."""
        indices = dict.fromkeys((split.stream, *(copy.origin for copy in split.copies)))
        return [self.runs.fleet.backends[i] for i in indices]

    def __enter__(self) -> None:
        """Does nothing: the work is in `__exit__`."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, (RunFailed, MemoryLost)):
            return
        if isinstance(error, StepFailed):
            self.step, error = error.step, error.__cause__
        # Waiting again would also end where an error of queued work was raised before.
        self._waited = {
            index: [stream for stream, moment in streams if stream.waited_since(moment)]
            for index, streams in self.context.ended.items()
        }
        late = self._settle()
        if isinstance(error, self.kinds):
            raise self._fail(error, late) from error
        if self.runs.limit.stuck:
            # The error is not the device's, but its memory must not be used any more.
            hung = next((e for e in late if isinstance(e, DeviceHung)), None)
            if hung is not None:
                self._fail(hung, late)

    def _fail(self, error: TensorplugError, late: Sequence[TensorplugError]) -> RunFailed:
        self.failed = self._blamed(error, late)
        self.disturbed = {device for e in (error, *late) for device in e.devices}
        self.disturbed.update(self.failed)
        state = self._state(error)
        self.failure = RunFailed(f"{_text(state)}: {error}{_facts(state)}", state)
        self.serial = self.runs.count
        self.runs.note_failure(self, self.failure)
        return self.failure

    def _settle(self) -> list[TensorplugError]:
        """Wait for all queued work; return the errors that devices raise."""
        late: list[TensorplugError] = []
        for backend in self.runs.fleet.backends:
            try:
                self.runs.limit.call(backend.synchronize, backend.device)
            except TensorplugError as error:
                late.append(error)
        self.runs.fleet.forget_marks()
        return late

    @property
    def _waits_for_others(self) -> bool:
        """True if the stream of the present step may hang because another stream does."""
        return isinstance(self.step, Copy | Wait) and not self.step.by_host

    def _blamed(
        self, error: TensorplugError, late: Iterable[TensorplugError]
    ) -> tuple[Device, ...]:
        ours = [backend.device for backend in self.runs.fleet.backends]
        errors = [error, *(e for e in late if isinstance(e, FAILURES))]
        if isinstance(error, DeviceHung) and self._waits_for_others and len(errors) > 1:
            del errors[0]
        firsts = [next((d for d in e.devices if d in ours), None) for e in errors]
        found = tuple(dict.fromkeys(device for device in firsts if device is not None))
        if found or self.step is None:
            return found
        return (self.runs.fleet.backends[self.step.stream].device,)

    def _state(self, error: TensorplugError) -> RunState:
        splits = () if self.schedule is None else self.schedule.splits
        names = tuple(device.name for device in self.failed)
        cause, hint = next((word, hint) for kind, word, hint in CAUSES if isinstance(error, kind))
        queued = splits[: self.begun if self.split is None else self.split]
        sound = tuple(takewhile(self._is_done, queued))
        self.completed, self.queued = len(sound), len(queued)
        return RunState(
            devices=names,
            cause=cause,
            doing=self._doing(splits),
            node=error.node,
            split=self.split,
            splits=len(splits),
            completed=tuple(s.index for s in sound),
            held=self._held(),
            remedy=hint + WITHOUT_IT.format(names=" and ".join(names) or "the device"),
            step=self._surfaced(),
        )

    def _doing(self, splits: Sequence[Split]) -> str:
        step = self.step
        if step is None:
            return (
                "finishes the run" if splits and self.begun == len(splits) else "prepares the run"
            )
        what = step.words if step.moved is None else f"{step.words} {step.moved.label}"
        if step.split is None:
            return what
        nodes = splits[step.split].nodes
        split = f"split {step.split} of {len(splits)} ({nodes[0].op} to {nodes[-1].op})"
        return f"{what} {split}" if step.moved is None else f"{what} for {split}"

    def _surfaced(self) -> str:
        """The step at which the failure surfaced, and its number in the program."""
        if self.step is None or self.schedule is None:
            return ""
        title = self.step.title(self.runs.fleet.names)
        steps = (*self.schedule.uploads, *self.program)
        number = next((i for i, step in enumerate(steps) if step is self.step), None)
        return title if number is None else f"{number} of {len(steps)} ({title})"

    def _is_done(self, split: Split) -> bool:
        """True if a split that was queued is known to be complete."""
        waited = self._waited.get(split.index, ())
        return split.index < self.skipped or all(
            stream.device not in self.disturbed or stream in waited
            for stream in self._streams(split)
        )

    def _held(self) -> dict[str, int]:
        pools = [p for p in self.runs.fleet.arena.pools if p.device in self.failed]
        held = {pool.name: self.runs.memory_size(pool) for pool in pools}
        if self.schedule is not None:
            for buffer in self.schedule.private_buffers():
                if buffer.type.device in self.failed:
                    held[buffer.type.name] = held.get(buffer.type.name, 0) + buffer.size
            for root in persistent(self.schedule.graph.leafs):
                if self.runs.lost.place_of(root).buffer.type.device in self.failed:
                    held[root.label] = root.nbytes
        return {name: size for name, size in held.items() if size}


def written(nodes: Iterable[Tensor]) -> list[Tensor]:
    """The roots of other tensors that `nodes` write, each once."""
    return list(dict.fromkeys(root for node in nodes for root in node.written_roots))


def _text(state: RunState) -> str:
    node = f", at {state.node}" if state.node else ""
    return f"{' and '.join(state.devices) or 'a device'}: {state.cause} as it {state.doing}{node}"


def _facts(state: RunState) -> str:
    done = ", ".join(map(str, state.completed)) or "none"
    held = _held(state.held)
    step = f"; surfaced at step {state.step}" if state.step else ""
    return f"{step}; splits done: {done}; held there: {held}; {state.remedy}"


def _held(held: Mapping[str, int]) -> str:
    """The memory that is held, the largest first if there is much of it."""
    if len(held) <= SHOWN:
        return ", ".join(f"{name} {human(size)}" for name, size in held.items()) or "nothing"
    largest = sorted(held.items(), key=lambda item: -item[1])[:SHOWN]
    named = ", ".join(f"{name} {human(size)}" for name, size in largest)
    return f"{named} and {len(held) - SHOWN} more, {human(sum(held.values()))} in all"
