"""The loop over the steps of a program, and what each step does.

What concerns every step is composed once around it, by `around`: a trace's span, the hang limit,
the sanitizer, an observer. Where a fleet has none of these a step is called as it is.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tensorplug.device.backend import Backend, SupportsEvents, order_after, tell_of_move
from tensorplug.device.buffer import as_bytes
from tensorplug.device.marks import Mark as StreamMark
from tensorplug.device.moving import queue_copy
from tensorplug.device.part import Part
from tensorplug.device.placing import host_data
from tensorplug.device.transfer import copy as copy_tensor
from tensorplug.device.transfer import read, read_async
from tensorplug.errors import Aborted, DeviceError, OutOfMemory
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Array, Tensor, array_view
from tensorplug.planning.program import (
    Copy,
    Mark,
    Read,
    Run,
    Signal,
    Step,
    To,
    Until,
    Upload,
    Value,
    Wait,
)
from tensorplug.running.experts import copy_used_experts
from tensorplug.running.ids import run_checked

if TYPE_CHECKING:
    from tensorplug.inspect.sanitizer import Sanitizer
    from tensorplug.inspect.trace import Trace
    from tensorplug.running.fleet import Fleet
    from tensorplug.running.limit import Limit
    from tensorplug.running.schedule import Batch, Schedule

FAILURES = (DeviceError, OutOfMemory)
"""What a device raises that failed; all other errors are the program's."""

Call = Callable[[Step, "Fleet", "Work"], Any]
"""Makes a step happen on a fleet, for a run."""


class Observer(Protocol):
    """Looks at values while a graph runs; every value it wants costs a synchronisation."""

    def wants(self, node: Tensor) -> bool:
        """Whether to stop after `node` and show it. Asked for all nodes before the run begins."""
        ...

    def see(self, node: Tensor, value: Array) -> bool:
        """Take the value of `node`; return False to cancel the run, which then raises Aborted."""
        ...


@dataclass(slots=True, eq=False)
class Work:
    """What the steps of one run share: its memory, what it was given, and what comes of it."""

    schedule: "Schedule"
    batch: "Batch"
    given: Mapping[Tensor, Any] = field(default_factory=dict)
    """Inputs."""
    kept: Mapping[Tensor, Array] = field(default_factory=dict)
    """Values that an earlier attempt left."""
    begun: int = 0
    """How many splits may have changed memory, or need not run."""
    ended: dict[int, list[tuple[Backend, int]]] = field(default_factory=dict)
    """By split: its streams, each with the moment at which all of it was queued."""
    copiers: set[Backend] = field(default_factory=set)
    """Streams that copy between devices."""
    lent: list[tuple[int, Backend]] = field(default_factory=list)
    """Streams whose memory is copied for the split at work, and the streams that read it."""
    outputs: dict[Tensor, Array] = field(default_factory=dict)
    """Values that were read, or will be there when `marks` are reached."""
    marks: dict[int, StreamMark] = field(default_factory=dict)
    """By stream: what is done when all that was queued for the batch is done."""


class StepFailed(Exception):
    """A device failed in the middle of a program; its own error is the cause.

    `step`, the one with `number`, is where that surfaced: queued work fails later than its step.
    """

    def __init__(self, number: int, step: Step) -> None:
        super().__init__(f"step {number}: {step}")
        self.number = number
        self.step = step


def run(program: Iterable[Step], fleet: "Fleet", work: Work, call: Call) -> None:
    """Queue the steps of `program` in order. Raises StepFailed, and errors of the program."""
    for number, step in enumerate(program):
        try:
            call(step, fleet, work)
        except FAILURES as error:
            raise StepFailed(number, step) from error


# --- around each step --------------------------------------------------------------------------


def around(limit: "Limit", trace: "Trace | None", sanitizer: "Sanitizer | None") -> Call:
    """How steps are called: as they are where nothing observes them."""
    call: Call = bare
    if sanitizer is not None:
        call = partial(_checked, sanitizer)
    if limit.seconds is not None:
        call = partial(_limited, limit, call)
    if trace is not None:
        call = partial(_traced, trace, call)
    return call


def bare(step: Step, fleet: "Fleet", work: Work) -> Any:
    """Make a step happen."""
    return DO[type(step)](step, fleet, work)


def shown(observer: Observer, call: Call) -> Call:
    """`call`, and the observer sees the values that are read for it."""

    def show(step: Step, fleet: "Fleet", work: Work) -> None:
        value = call(step, fleet, work)
        if (
            isinstance(step, Read)
            and step.to is To.OBSERVER
            and not observer.see(step.tensor, value)
        ):
            raise Aborted(f"{step.tensor}: the observer cancelled the run here")

    return show


def _traced(trace: "Trace", call: Call, step: Step, fleet: "Fleet", work: Work) -> Any:
    stream = None if step.by_host else fleet.backends[step.stream]
    origin = None if step.origin is None else fleet.backends[step.origin]
    with trace.span(step.title(fleet.names), stream, origin, **step.facts):
        return call(step, fleet, work)


def _limited(limit: "Limit", call: Call, step: Step, fleet: "Fleet", work: Work) -> Any:
    return limit.call(partial(call, step, fleet, work), fleet.backends[step.stream].device)


def _checked(sanitizer: "Sanitizer", step: Step, fleet: "Fleet", work: Work) -> Any:
    if isinstance(step, Run) and step.whole:
        return _run_split(step, fleet, work, checked_by=sanitizer)
    if step.by_host:
        for tensor in step.reads:
            sanitizer.touches(tensor, _places(step, work).where(tensor))
        if isinstance(step, Upload) and step.value is Value.LAST:
            last = work.schedule.last_batch(step.tensor)
            sanitizer.touches(step.tensor, last.places[step.tensor])
        for tensor in step.writes:
            sanitizer.touches(tensor, _places(step, work).where(tensor), writes=True)
    elif step.moved is not None:
        sanitizer.about(step.moved)
    return bare(step, fleet, work)


def _places(step: Step, work: Work) -> Bindings:
    """Where the tensors of a step lie: copies of them, for the nodes of a split."""
    return work.batch.bindings if step.split is None else work.batch.locals[step.split]


# --- what each step does -----------------------------------------------------------------------


def _upload(step: Upload, _fleet: "Fleet", work: Work) -> None:
    tensor = step.tensor
    if step.value is Value.LAST:
        start = work.schedule.last_batch(tensor).places[tensor]
        end = work.batch.places[tensor]
        copy_tensor(tensor, tensor, Bindings({tensor: start}), Bindings({tensor: end}))
    else:
        place = work.batch.bindings.where(tensor)
        if step.value is Value.GIVEN:
            content = as_bytes(host_data(tensor, work.given[tensor]))
        else:
            content = as_bytes(work.kept[tensor])
        place.buffer.write_tensor(tensor, place.offset, content)


def _wait(step: Wait, fleet: "Fleet", work: Work) -> None:
    stream = fleet.backends[step.stream]
    if step.until is Until.DONE:
        stream.synchronize()
    elif step.until is Until.OTHER:
        assert step.other is not None
        order_after(fleet.backends[step.other], stream)
    elif step.until is Until.FREE:
        fleet.enter(step.stream)
    else:
        work.marks[step.stream].synchronize()


def _copy(step: Copy, fleet: "Fleet", work: Work) -> None:
    batch = work.batch
    sender, stream = fleet.backends[step.sender], fleet.backends[step.stream]
    start, end = batch.bindings.where(step.source), batch.bindings.where(step.target)
    if not (start.buffer.type.standard_layout and end.buffer.type.standard_layout):
        sender.synchronize()
        stream.synchronize()
        tell_of_move(stream, None, start, end, step.source.nbytes)
        copy_tensor(step.source, step.target, batch.bindings, batch.bindings)
        return
    if step.expert_user is not None:
        assert step.chooser is not None
        chooser = fleet.backends[step.chooser]
        reader = copy_used_experts(
            sender, stream, chooser, step.source, step.target, step.expert_user, batch.bindings
        )
    else:
        staging = partial(_staging, work, step.target)
        reader = queue_copy(sender, stream, start, end, step.source.nbytes, staging)
    if reader is not None:
        work.copiers.add(reader)
        if step.source.root not in batch.places:
            work.lent.append((step.sender, reader))


def _staging(work: Work, target: Tensor, size: int) -> Array:
    """Host memory of a batch, for a copy to `target`: free again when the batch is done."""
    staging = work.batch.staging
    if target not in staging:
        staging[target] = np.empty(size, np.uint8)
    return staging[target]


def _run_split(
    step: Run, fleet: "Fleet", work: Work, checked_by: "Sanitizer | None" = None
) -> None:
    batch, split = work.batch, step.split
    assert split is not None
    work.begun = split + 1
    if not step.whole:
        fleet.backends[step.stream].compute(Part(step.nodes, batch.locals[split]))
    elif checked_by is not None:
        run_checked(checked_by, step.nodes, batch.plans[split], batch.locals[split])
    else:
        batch.plans[split].run()
    if step.ends:
        streams = [fleet.backends[i] for i in step.ends]
        work.ended[split] = [(stream, stream.moment()) for stream in streams]


def _signal(step: Signal, fleet: "Fleet", work: Work) -> None:
    stream = fleet.backends[step.stream]
    if step.whom is Mark.LENDERS:
        fleet.hold([(lender, stream) for lender in step.lenders])
        if step.split is not None:
            fleet.leave(step.stream)
    elif step.whom is Mark.COPIES:
        fleet.hold(_unsettled(fleet, work))
    elif stream in work.copiers or not step.if_idle:
        work.marks[step.stream] = StreamMark(stream)


def _unsettled(fleet: "Fleet", work: Work) -> list[tuple[int, Any]]:
    """Wait for readers without events, now that they have only copies; return the others.

    The next batch would wait for all that they are given from now on.
    """
    lent, work.lent = work.lent, []
    working = {split.backend for split in work.schedule.splits}
    late = [
        (lender, reader)
        for lender, reader in lent
        if not isinstance(reader, SupportsEvents)
        and any(i in working for i in fleet.sharers[lender])
    ]
    for reader in dict.fromkeys(reader for _, reader in late):
        reader.synchronize()
    return [pair for pair in lent if pair not in late]


def _read(step: Read, fleet: "Fleet", work: Work) -> Array:
    tensor, bindings = step.tensor, _places(step, work)
    if step.to is To.OBSERVER:
        return read(tensor, bindings)
    if step.to is To.HOST:
        work.outputs[tensor] = read(tensor, bindings)
        return work.outputs[tensor]
    out = np.empty(tensor.nbytes, np.uint8)
    if tensor.nbytes:
        read_async(fleet.backends[step.stream], tensor, out, bindings=bindings)
    work.outputs[tensor] = array_view(tensor, out, 0)
    return work.outputs[tensor]


DO: Mapping[type[Step], Callable[[Any, "Fleet", "Work"], Any]] = {
    Upload: _upload,
    Wait: _wait,
    Copy: _copy,
    Run: _run_split,
    Signal: _signal,
    Read: _read,
}
