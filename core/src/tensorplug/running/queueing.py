"""Queues one run of a schedule, or one batch: its inputs, then the steps of its program."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tensorplug.errors import NotAllocated
from tensorplug.graph.tensor import Tensor
from tensorplug.planning.program import Program, Upload, Value, observed
from tensorplug.running.failure import Attempt
from tensorplug.running.results import InFlight, Results
from tensorplug.running.run import Observer, Work, run, shown

if TYPE_CHECKING:
    from tensorplug.running.schedule import Schedule


def queue_run(
    attempt: Attempt,
    schedule: "Schedule",
    inputs: Mapping[Tensor, Any],
    observer: Observer | None,
) -> Results:
    """Queue one run after all work that is queued was waited for."""
    scheduler = schedule.scheduler
    scheduler.wait(attempt)
    batch = schedule.take_batch(attempt)
    program = schedule.program(attempt.start)
    scheduler.fleet.loose = True
    work = _queue(attempt, Work(schedule, batch), inputs, program, observer)
    values = scheduler.rescue.finish(attempt, schedule, work.batch)
    return Results(schedule, work.batch.bindings, scheduler.runs, values)


def queue_flight(
    attempt: Attempt,
    schedule: "Schedule",
    inputs: Mapping[Tensor, Any],
    observer: Observer | None,
) -> InFlight:
    """Queue one run and the reading of its outputs, beside batches already in flight."""
    scheduler = schedule.scheduler
    if scheduler.fleet.loose or observer is not None:
        # What an observer looks at lies elsewhere in the memory that all batches share.
        scheduler.wait(attempt)
    batch = schedule.take_batch(attempt)
    work = _queue(attempt, Work(schedule, batch), inputs, schedule.flight_program, observer)
    again = partial(schedule.outputs_again, attempt, observer)
    batch.pending = InFlight(work.outputs, list(work.marks.values()), attempt, again)
    return batch.pending


def _queue(
    attempt: Attempt,
    work: Work,
    inputs: Mapping[Tensor, Any],
    program: Program,
    observer: Observer | None,
) -> Work:
    schedule = work.schedule
    fleet, call = schedule.scheduler.fleet, schedule.scheduler.fleet.call
    if observer is not None:
        work.batch = schedule.unfused(work.batch)
        program, call = observed(program, observer.wants), shown(observer, call)
    attempt.begins(work)
    schedule.scheduler.runs += 1
    assert attempt.index is not None
    given = work.given = schedule.scheduler.rescue.keep(attempt, work.batch, inputs)
    steps = [schedule.upload(t) for t in given]
    if len(given) < len(schedule.graph.inputs):
        steps += _last_values(work)
    run(_noted(steps, work, attempt.index), fleet, work, fleet.call)
    for tensor in schedule.changed:
        schedule.has_value(tensor, work.batch, attempt.index, new=True)
    run(program, fleet, work, call)
    attempt.leaves()
    return work


def _last_values(work: Work) -> Iterator[Upload]:
    """Inputs that are not given and whose last value lies in another batch.

    Raises NotAllocated.
    """
    schedule = work.schedule
    others = [t for t in schedule.graph.inputs if t not in work.given]
    for tensor in others:
        if tensor not in schedule.latest:
            raise NotAllocated(f"{tensor}: has no value yet; give it to run()")
    for tensor in others:
        if not schedule.is_latest(tensor, work.batch):
            last = schedule.last_batch(tensor)
            if tensor in schedule.changed and last.pending is not None:
                # The value is what the graph makes of it there.
                last.pending.reach()
            yield schedule.upload(tensor, Value.LAST)


def _noted(steps: Sequence[Upload], work: Work, index: int) -> Iterator[Upload]:
    """The steps; behind each it is noted which batch has the value."""
    for step in steps:
        yield step
        new = step.value is Value.GIVEN
        work.schedule.has_value(step.tensor, work.batch, index, new=new)
