"""What a run reads: inputs that are given to it, and the last values of those that are not."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tensorplug.device.buffer import as_bytes
from tensorplug.device.placing import host_data
from tensorplug.device.transfer import copy
from tensorplug.errors import GraphError, NotAllocated
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Tensor
from tensorplug.running.failure import Attempt
from tensorplug.running.ids import check_given
from tensorplug.running.telling import host_touches, label, span

if TYPE_CHECKING:
    from tensorplug.running.schedule import Batch, Schedule


def take(schedule: "Schedule", inputs: Mapping[Tensor, Any]) -> Mapping[Tensor, Any]:
    """The inputs of a run, which no later attempt finds changed.

    Raises GraphError, NotAllocated.
    """
    known = schedule.graph.inputs
    for tensor in inputs:
        if tensor not in known:
            names = ", ".join(str(t) for t in known) or "none"
            raise GraphError(f"{tensor}: is no input of {schedule.graph}; its inputs: {names}")
    for tensor in schedule.layout.transient:
        if tensor not in inputs:
            raise NotAllocated(f"{tensor}: is transient; give it to every run()")
    check_given(schedule.given_ids, inputs)
    return schedule.scheduler.rescue.take(inputs)


def upload(
    attempt: Attempt, schedule: "Schedule", batch: "Batch", inputs: Mapping[Tensor, Any]
) -> None:
    """Put the inputs of a run into the memory of its batch. Raises NotAllocated."""
    scheduler, latest = schedule.scheduler, schedule.latest
    inputs = scheduler.rescue.keep(attempt, batch, inputs)
    others = [t for t in schedule.graph.inputs if t not in inputs]
    for tensor in others:
        if tensor not in latest:
            raise NotAllocated(f"{tensor}: has no value yet; give it to run()")
    assert attempt.index is not None
    run = scheduler.runs
    for tensor, data in inputs.items():
        place = batch.bindings.where(tensor)
        attempt.does("writes", tensor, schedule.home_of(tensor))
        host_touches(scheduler, tensor, place, writes=True)
        with span(scheduler, f"write {label(tensor)}", bytes=tensor.nbytes):
            content = as_bytes(host_data(tensor, data))
            write = partial(place.buffer.write_tensor, tensor, place.offset, content)
            scheduler.limit.call(write, place.buffer.type.device)
        if tensor in batch.places:
            latest[tensor], batch.values[tensor] = (run, attempt.index), run
    for tensor in others:
        if not schedule.is_latest(tensor, batch):
            _bring_forward(attempt, schedule, batch, tensor)
    for tensor in schedule.changed:
        latest[tensor], batch.values[tensor] = (run, attempt.index), run


def _bring_forward(attempt: Attempt, schedule: "Schedule", batch: "Batch", tensor: Tensor) -> None:
    """Copy an input from the batch that has its last value."""
    scheduler, last = schedule.scheduler, schedule.last_batch(tensor)
    if tensor in schedule.changed and last.pending is not None:
        # The value is what the graph makes of it there.
        last.pending.reach()
    start, end = last.places[tensor], batch.places[tensor]
    attempt.does("copies", tensor, schedule.home_of(tensor))
    host_touches(scheduler, tensor, start)
    host_touches(scheduler, tensor, end, writes=True)
    with span(scheduler, f"copy {label(tensor)}", bytes=tensor.nbytes):
        make = partial(copy, tensor, tensor, Bindings({tensor: start}), Bindings({tensor: end}))
        scheduler.limit.call(make, end.buffer.type.device)
    batch.values[tensor] = schedule.latest[tensor][0]
