"""The loop over the steps of a program, and what each step does.

What concerns every step is composed once around it, by `around`: a trace's span, the hang limit,
the sanitizer, an observer. Where a fleet has none of these a step is called as it is.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tensorplug.device.abilities import SupportsEvents
from tensorplug.device.backend import Backend, order_after, tell_of_move
from tensorplug.device.buffer import as_bytes
from tensorplug.device.marks import Mark
from tensorplug.device.moving import queue_copy
from tensorplug.device.observing import RaceDetector, Tracer
from tensorplug.device.part import Part
from tensorplug.device.placing import host_data
from tensorplug.device.transfer import copy as copy_tensor
from tensorplug.device.transfer import read, read_async
from tensorplug.errors import Aborted, DeviceError, OutOfMemory
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Array, Tensor, array_view
from tensorplug.planning.program import (
    Copy,
    Read,
    Run,
    Signal,
    Step,
    To,
    Until,
    Upload,
    Value,
    Wait,
    Waiters,
)
from tensorplug.running.batch import Batch
from tensorplug.running.experts import copy_used_experts
from tensorplug.running.ids import run_checked

if TYPE_CHECKING:
    from tensorplug.running.fleet import Fleet
    from tensorplug.running.limit import Limit

FAILURES = (DeviceError, OutOfMemory)
"""Errors of a device that failed; all other errors are mistakes of the program."""

Calls = Mapping[type[Step], Callable[[Any, "Fleet", "RunContext"], Any]]
"""For each kind of step, the function that executes it on a fleet, for a run."""
Call = Callable[[Any, "Fleet", "RunContext"], Any]
Marks = dict[int, Mark]


class Observer(Protocol):
    """Looks at values while a graph runs; every value it wants costs a synchronisation."""

    def wants(self, node: Tensor) -> bool:
        """True to stop after `node` and show it. Called for all nodes before the run begins."""
        ...

    def see(self, node: Tensor, value: Array) -> bool:
        """Take the value of `node`; return False to cancel the run, which then raises Aborted."""
        ...


NO_MEMORY = Batch()
NO_VALUES: Mapping[Tensor, Any] = MappingProxyType({})


class RunContext:
    """What the steps of one run share: its memory, its inputs and its outputs."""

    def __init__(
        self, batch: Batch = NO_MEMORY, *, begun: int = 0, marks: Marks | None = None
    ) -> None:
        self.batch = batch
        """Its memory."""
        self.begun = begun
        """The number of splits that were begun or skipped; only these may have changed memory."""
        self.marks: Marks = {} if marks is None else marks
        """For each stream, the mark after its last work for the batch."""
        self.given = NO_VALUES
        """Inputs."""
        self.last: Mapping[Tensor, Batch] = NO_VALUES
        """For inputs that are not given: the batch that has the last value."""
        self.kept: Mapping[Tensor, Array] = NO_VALUES
        """Values that an earlier attempt computed."""
        self.ended: dict[int, list[tuple[Backend, int]]] = {}
        """For each split, its streams, each with the moment at which all its work was queued."""
        self.copiers: set[Backend] = set()
        """Streams that copy between devices."""
        self.lent: list[tuple[int, Backend]] = []
        """Pairs of a stream whose memory is copied for the split, and the stream that reads it."""
        self.outputs: dict[Tensor, Array] = {}
        """Values that were read; those read asynchronously are valid when `marks` are reached."""

    def forget_memory(self) -> None:
        """Drop the references to memory of devices and to inputs."""
        self.batch = NO_MEMORY
        self.given = self.last = self.kept = NO_VALUES


class StepFailed(Exception):
    """A device failed in the middle of a program; the error of the device is the cause.

    The failure surfaced at `step`, which has the number `number`. Queued work fails later than its
    step, so an earlier step may have queued it.
    """

    def __init__(self, number: int, step: Step) -> None:
        super().__init__(f"step {number}: {step}")
        self.number = number
        self.step = step


def run(program: Iterable[Step], fleet: "Fleet", context: RunContext, calls: Calls) -> None:
    """Queue the steps of `program` in order. Raises StepFailed, and errors of the program."""
    for number, step in enumerate(program):
        try:
            calls[type(step)](step, fleet, context)
        except FAILURES as error:
            raise StepFailed(number, step) from error


def run_alone(program: Iterable[Step], fleet: "Fleet", context: RunContext) -> None:
    """`run` for programs without recovery: raises the error of the device itself.

    A note of the error names the step at which it surfaced.
    """
    try:
        run(program, fleet, context, fleet.calls)
    except StepFailed as failed:
        error = failed.__cause__
        assert error is not None
        error.add_note(f"at step {failed.number}: {failed.step.title(fleet.names)}")
        raise error from error.__cause__


# --- around each step --------------------------------------------------------------------------


def around(limit: "Limit", trace: Tracer | None, sanitizer: RaceDetector | None) -> Calls:
    """The function for each kind of step, with what observes it; without observers just `DO`."""
    calls = dict(DO)
    if sanitizer is not None:
        calls = {kind: partial(_checked, sanitizer, do) for kind, do in calls.items()}
        calls[Run] = partial(_run, checked_by=sanitizer)
    if limit.seconds is not None:
        calls = {kind: partial(_limited, limit, call) for kind, call in calls.items()}
    if trace is not None:
        calls = {kind: partial(_traced, trace, call) for kind, call in calls.items()}
    return calls


def shown(observer: Observer, calls: Calls) -> Calls:
    """`calls` with a function for reads that shows values to the observer."""

    def show(step: Read, fleet: "Fleet", context: RunContext) -> None:
        value = calls[Read](step, fleet, context)
        if step.to is To.OBSERVER and not observer.see(step.tensor, value):
            raise Aborted(f"{step.tensor}: the observer cancelled the run here")

    return {**calls, Read: show}


def _traced(trace: Tracer, call: Call, step: Step, fleet: "Fleet", context: RunContext) -> Any:
    stream = None if step.by_host else fleet.backends[step.stream]
    origin = None if step.origin is None else fleet.backends[step.origin]
    with trace.span(step.title(fleet.names), stream, origin, **step.facts):
        return call(step, fleet, context)


def _limited(limit: "Limit", call: Call, step: Step, fleet: "Fleet", context: RunContext) -> Any:
    return limit.call(partial(call, step, fleet, context), fleet.backends[step.stream].device)


def _checked(
    sanitizer: RaceDetector, call: Call, step: Step, fleet: "Fleet", context: RunContext
) -> Any:
    if not step.by_host:
        if step.moved is not None:
            sanitizer.about(step.moved)
        return call(step, fleet, context)
    places = _places(step, context)
    for tensor in step.reads:
        sanitizer.touches(tensor, places.where(tensor))
    for tensor in step.writes:
        if tensor in context.last:
            sanitizer.touches(tensor, context.last[tensor].places[tensor])
        sanitizer.touches(tensor, places.where(tensor), writes=True)
    return call(step, fleet, context)


def _places(step: Step, context: RunContext) -> Bindings:
    """Where the tensors of a step lie: copies of them, for the nodes of a split."""
    return context.batch.bindings if step.split is None else context.batch.locals[step.split]


# --- what each step does -----------------------------------------------------------------------


def _upload(step: Upload, _fleet: "Fleet", context: RunContext) -> None:
    tensor = step.tensor
    if step.value is Value.LAST:
        start = context.last[tensor].places[tensor]
        end = context.batch.places[tensor]
        copy_tensor(tensor, tensor, Bindings({tensor: start}), Bindings({tensor: end}))
    else:
        place = context.batch.bindings.where(tensor)
        if step.value is Value.GIVEN:
            content = as_bytes(host_data(tensor, context.given[tensor]))
        else:
            content = as_bytes(context.kept[tensor])
        place.buffer.write_tensor(tensor, place.offset, content)


def _wait(step: Wait, fleet: "Fleet", context: RunContext) -> None:
    stream = fleet.backends[step.stream]
    if step.until is Until.DONE:
        stream.synchronize()
    elif step.until is Until.OTHER:
        assert step.other is not None
        order_after(fleet.backends[step.other], stream)
    elif step.until is Until.FREE:
        fleet.enter(step.stream)
    else:
        context.marks[step.stream].synchronize()


def _copy(step: Copy, fleet: "Fleet", context: RunContext) -> None:
    batch = context.batch
    size = batch.joined.get(step, step.source.nbytes)
    if not size:
        return  # a copy before took its bytes
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
        staging = partial(_staging, context, step.target)
        reader = queue_copy(sender, stream, start, end, size, staging)
    if reader is not None:
        context.copiers.add(reader)
        if step.source.root not in batch.places:
            context.lent.append((step.sender, reader))


def _staging(context: RunContext, target: Tensor, size: int) -> Array:
    """Host memory of a batch for a copy to `target`; free again when the batch is complete."""
    staging = context.batch.staging
    if target not in staging or staging[target].size != size:
        staging[target] = np.empty(size, np.uint8)
    return staging[target]


def _run(
    step: Run, fleet: "Fleet", context: RunContext, checked_by: RaceDetector | None = None
) -> None:
    batch, split = context.batch, step.split
    assert split is not None
    context.begun = split + 1
    if not step.whole:
        fleet.backends[step.stream].compute(Part(step.nodes, batch.locals[split]))
    elif checked_by is not None:
        run_checked(checked_by, step.nodes, batch.plans[split], batch.locals[split])
    else:
        batch.plans[split].run()
    if step.ends:
        streams = [fleet.backends[i] for i in step.ends]
        context.ended[split] = [(stream, stream.moment()) for stream in streams]


def _signal(step: Signal, fleet: "Fleet", context: RunContext) -> None:
    stream = fleet.backends[step.stream]
    if step.waiters is Waiters.LENDERS:
        fleet.add_readers([(lender, stream) for lender in step.lenders])
        if step.split is not None:
            fleet.leave(step.stream)
    elif step.waiters is Waiters.COPIES:
        fleet.add_readers(_unsettled(step, context))
    elif stream in context.copiers or not step.if_idle:
        context.marks[step.stream] = Mark(stream)


def _unsettled(step: Signal, context: RunContext) -> list[tuple[int, Backend]]:
    """Wait for readers without events, and return the others.

    They have queued only copies so far. The next batch would also wait for their later work.
    """
    lent, context.lent = context.lent, []
    late = [
        (lender, reader)
        for lender, reader in lent
        if not isinstance(reader, SupportsEvents) and lender in step.lenders
    ]
    for reader in dict.fromkeys(reader for _, reader in late):
        reader.synchronize()
    return [pair for pair in lent if pair not in late]


def _read(step: Read, fleet: "Fleet", context: RunContext) -> Array:
    tensor, bindings = step.tensor, _places(step, context)
    if step.to is To.OBSERVER:
        return read(tensor, bindings)
    if step.to is To.HOST:
        context.outputs[tensor] = read(tensor, bindings)
        return context.outputs[tensor]
    out = np.empty(tensor.nbytes, np.uint8)
    if tensor.nbytes:
        read_async(fleet.backends[step.stream], tensor, out, bindings=bindings)
    context.outputs[tensor] = array_view(tensor, out, 0)
    return context.outputs[tensor]


DO: Calls = {
    Upload: _upload,
    Wait: _wait,
    Copy: _copy,
    Run: _run,
    Signal: _signal,
    Read: _read,
}
