"""Runs a schedule: inputs up, copies between devices, one plan per split, outputs down."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplug.device.backend import Backend, Plan, SupportsEvents, order_after, tell_of_move
from tensorplug.device.buffer import as_bytes
from tensorplug.device.marks import Mark
from tensorplug.device.moving import queue_copy
from tensorplug.device.part import Part
from tensorplug.device.transfer import copy as copy_tensor
from tensorplug.device.transfer import read, read_async
from tensorplug.errors import Aborted, RunFailed
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Array, Tensor, array_view
from tensorplug.planning.split import Copy, Split
from tensorplug.running.experts import copy_used_experts, expert_ids, uses_few_experts
from tensorplug.running.failure import Attempt
from tensorplug.running.ids import run_checked
from tensorplug.running.recovery.restart import Restart
from tensorplug.running.results import InFlight, Results
from tensorplug.running.run import Observer
from tensorplug.running.telling import about, host_touches, label, span
from tensorplug.running.upload import take, upload

if TYPE_CHECKING:
    from tensorplug.running.schedule import Batch, Schedule
    from tensorplug.running.scheduler import Scheduler


def run(
    schedule: "Schedule",
    inputs: Mapping[Tensor, Any],
    observer: Observer | None,
    index: int | None = None,
) -> Results:
    """Queue one run on the next batch, or that of `index`; once more where a device is left out."""
    scheduler = schedule.scheduler
    inputs = take(schedule, inputs)
    start: Restart | None = None
    while True:
        attempt = Attempt(scheduler, schedule, index=index, start=start)
        try:
            with scheduler.turn, attempt:
                schedule.check_open()
                schedule.prepare(start)
                if not scheduler.rescue.owes:
                    return _run(attempt, schedule, inputs, observer)
            scheduler.rescue.restore()
        except RunFailed as failure:
            start = scheduler.rescue.recover(failure, attempt)
            inputs, index = attempt.inputs or inputs, attempt.index
        finally:
            # A device that hangs may keep its memory, and others ask when it is free.
            attempt.batch = None


def _run(
    attempt: Attempt,
    schedule: "Schedule",
    inputs: Mapping[Tensor, Any],
    observer: Observer | None,
) -> Results:
    scheduler = schedule.scheduler
    scheduler.wait(attempt)
    batch = schedule.take_batch(attempt)
    if observer is not None:
        batch = schedule.unfused(batch)
    attempt.batch = batch
    attempt.skips()
    scheduler.runs += 1
    upload(attempt, schedule, batch, inputs)
    scheduler.fleet.loose = True
    if attempt.start is not None:
        _resume(attempt, attempt.start, schedule, batch)
    work = zip(schedule.splits, batch.plans, batch.locals, strict=True)
    for split, plan, bindings in islice(work, attempt.skipped, None):
        _bring(schedule, batch, split, attempt)
        with _split_span(scheduler, split):
            attempt.runs()
            _run_split(schedule, split, plan, bindings, observer)
        attempt.has_queued(split)
    attempt.leaves()
    values = scheduler.rescue.finish(attempt, schedule, batch)
    return Results(schedule, batch.bindings, scheduler.runs, values)


def submit(
    schedule: "Schedule", inputs: Mapping[Tensor, Any], observer: Observer | None = None
) -> InFlight:
    """Queue one run and the reading of its outputs, beside batches already in flight."""
    scheduler, index = schedule.scheduler, None
    inputs = take(schedule, inputs)
    while True:
        attempt = Attempt(scheduler, schedule, index=index, in_flight=True)
        try:
            with scheduler.turn, attempt:
                schedule.check_open()
                schedule.prepare()
                if not scheduler.rescue.owes:
                    return _submit(attempt, schedule, inputs, observer)
            scheduler.rescue.restore()
        except RunFailed as failure:
            scheduler.rescue.recover(failure, attempt)
            inputs, index = attempt.inputs or inputs, attempt.index


def _submit(
    attempt: Attempt,
    schedule: "Schedule",
    inputs: Mapping[Tensor, Any],
    observer: Observer | None,
) -> InFlight:
    scheduler = schedule.scheduler
    if scheduler.fleet.loose or observer is not None:
        # What an observer looks at lies elsewhere in the memory that all batches share.
        scheduler.wait(attempt)
    taken = schedule.take_batch(attempt)
    batch = taken if observer is None else schedule.unfused(taken)
    scheduler.runs += 1
    upload(attempt, schedule, batch, inputs)
    work = zip(schedule.splits, taken.plans, batch.locals, strict=True)
    for split, plan, bindings in work:
        attempt.enters(split, plan.backend)
        _enter(scheduler, split)
        lent = _bring(schedule, batch, split, attempt)
        scheduler.fleet.hold(_unsettled(schedule, lent, attempt))
        with _split_span(scheduler, split):
            attempt.runs()
            _run_split(schedule, split, plan, bindings, observer)
        _leave(scheduler, split)
    attempt.leaves()
    # Each once: memory that a stream still writes must not be given up for that of a second read.
    wanted = dict.fromkeys(schedule.graph.outputs)
    outputs = {t: _read_later(attempt, schedule, batch, t) for t in wanted}
    where = schedule.layout.where
    busy = {s.backend for s in schedule.splits} | {where[t].backend for t in outputs}
    busy |= {scheduler.backends.index(stream) for stream in attempt.copiers}
    waits = [_mark(scheduler, i) for i in busy]
    again = partial(schedule.outputs_again, attempt, observer)
    taken.pending = InFlight(outputs, waits, attempt, again)
    return taken.pending


def _split_span(scheduler: "Scheduler", split: Split) -> AbstractContextManager[None]:
    name = f"{split.nodes[0].op} to {split.nodes[-1].op}"
    return span(scheduler, name, scheduler.backends[split.backend], nodes=len(split.nodes))


def _resume(attempt: Attempt, start: Restart, schedule: "Schedule", batch: "Batch") -> None:
    """Put into memory what splits that are skipped would have left there for the others."""
    scheduler = schedule.scheduler
    for root, value in start.values.items():
        place = batch.bindings.where(root)
        attempt.does("writes", root, schedule.home_of(root))
        host_touches(scheduler, root, place, writes=True)
        with span(scheduler, f"write {label(root)}", bytes=root.nbytes):
            put = partial(place.buffer.write_tensor, root, place.offset, as_bytes(value))
            scheduler.limit.call(put, place.buffer.type.device)
    skipped, rest = schedule.splits[: attempt.skipped], schedule.splits[attempt.skipped :]
    used = {target for split in rest for target in split.local.values()}
    for split in skipped:
        for copy in split.copies:
            if copy.target in used and copy.source.nbytes:
                target = scheduler.backends[split.backend]
                about(scheduler, copy.source)
                attempt.does("copies", copy.source, target)
                make = partial(_copy_whole, schedule, batch, split, copy)
                scheduler.limit.call(make, target.device)


def _enter(scheduler: "Scheduler", split: Split) -> None:
    """Wait for earlier batches, and other schedules, that use the memory in which `split` works."""
    then = scheduler.backends[split.backend]
    # The arena is shared by the batches: what others still copy from it must be read.
    for mark in scheduler.fleet.readers.pop(split.backend, {}).values():
        _order_mark(scheduler, mark, then)
    user = scheduler.fleet.users.get(scheduler.arena.pools[split.backend])
    if user is not None and user.stream is not then:
        _order_mark(scheduler, user, then)


def _leave(scheduler: "Scheduler", split: Split) -> None:
    """Note who uses memory of others from now on: lent to `split`, or shared with it."""
    backend = scheduler.backends[split.backend]
    scheduler.fleet.hold((lender, backend) for lender in split.after)
    if len(scheduler.fleet.sharers[split.backend]) > 1:
        scheduler.fleet.users[scheduler.arena.pools[split.backend]] = Mark(backend)


def _bring(
    schedule: "Schedule", batch: "Batch", split: Split, attempt: Attempt
) -> list[tuple[int, Backend]]:
    """Wait for who still reads what `split` overwrites, and make the copies that it reads.

    Returns which lender's memory, shared by all batches, which stream reads for them.
    """
    scheduler = schedule.scheduler
    target = scheduler.backends[split.backend]
    lent: list[tuple[int, Backend]] = []
    attempt.enters(split, target)
    for reader in split.after:
        with span(scheduler, f"wait for {scheduler.backends[reader].name}", target):
            order = partial(order_after, scheduler.backends[reader], target)
            scheduler.limit.call(order, target.device)
    for copy in split.copies:
        if copy.source.nbytes:
            origin, size = scheduler.backends[copy.origin], copy.source.nbytes
            about(scheduler, copy.source)
            attempt.does("copies", copy.source, target)
            with span(scheduler, f"copy {label(copy.source)}", target, origin, bytes=size):
                make = partial(_copy, schedule, batch, split, copy)
                stream = scheduler.limit.call(make, target.device)
            if stream is not None:
                attempt.copiers.add(stream)
            if stream is not None and copy.source.root not in batch.places:
                lent.append((copy.origin, stream))
    return lent


def _unsettled(
    schedule: "Schedule", lent: Sequence[tuple[int, Backend]], attempt: Attempt
) -> list[tuple[int, Backend]]:
    """Wait for readers without events, now that they have nothing but copies; return the others.

    The next batch would wait for all that they are given from now on.
    """
    scheduler = schedule.scheduler
    working = {split.backend for split in schedule.splits}
    late = [
        (lender, reader)
        for lender, reader in lent
        if not isinstance(reader, SupportsEvents)
        and any(i in working for i in scheduler.fleet.sharers[lender])
    ]
    for reader in dict.fromkeys(reader for _, reader in late):
        attempt.does("waits for the reader of what is read by", None, reader)
        with span(scheduler, f"wait for {reader.name}"):
            scheduler.limit.call(reader.synchronize, reader.device)
    return [pair for pair in lent if pair not in late]


def _order_mark(scheduler: "Scheduler", mark: Mark, then: Backend) -> None:
    with span(scheduler, f"wait for {mark.stream.name}", then):
        scheduler.limit.call(partial(mark.order, then), then.device)


def _copy(schedule: "Schedule", batch: "Batch", split: Split, copy: Copy) -> Backend | None:
    """Make one copy, or queue it; returns the stream that still reads its source, if any."""
    backends, bindings = schedule.scheduler.backends, batch.bindings
    start, end = bindings.where(copy.source), bindings.where(copy.target)
    plain = start.buffer.type.standard_layout and end.buffer.type.standard_layout
    if not (plain and uses_few_experts(copy, split)):
        return _copy_whole(schedule, batch, split, copy)
    origin, target = backends[copy.origin], backends[split.backend]
    chooser = backends[schedule.layout.where[expert_ids(split).root].backend]
    user = split.nodes[0]
    return copy_used_experts(origin, target, chooser, copy.source, copy.target, user, bindings)


def _copy_whole(schedule: "Schedule", batch: "Batch", split: Split, copy: Copy) -> Backend | None:
    """The same, with all experts."""
    backends, bindings = schedule.scheduler.backends, batch.bindings
    origin, target = backends[copy.origin], backends[split.backend]
    start, end = bindings.where(copy.source), bindings.where(copy.target)
    if start.buffer.type.standard_layout and end.buffer.type.standard_layout:
        staging = partial(_staging, batch, copy.target)
        return queue_copy(origin, target, start, end, copy.source.nbytes, staging)
    origin.synchronize()
    target.synchronize()
    tell_of_move(target, None, start, end, copy.source.nbytes)
    copy_tensor(copy.source, copy.target, bindings, bindings)
    return None


def _staging(batch: "Batch", target: Tensor, size: int) -> Array:
    """Host memory of a batch, for a copy to `target`: free again when the batch is done."""
    if target not in batch.staging:
        batch.staging[target] = np.empty(size, np.uint8)
    return batch.staging[target]


def _read_later(attempt: Attempt, schedule: "Schedule", batch: "Batch", output: Tensor) -> Array:
    home = schedule.layout.where[output].backend
    backend = schedule.scheduler.backends[home]
    out = np.empty(output.nbytes, np.uint8)
    if output.nbytes:
        about(schedule.scheduler, output)
        attempt.does("reads", output, backend)
        with span(schedule.scheduler, f"read {label(output)}", backend, bytes=output.nbytes):
            get = partial(read_async, backend, output, out, bindings=batch.bindings)
            schedule.scheduler.limit.call(get, backend.device)
        schedule.scheduler.fleet.hold([(home, backend)])
    return array_view(output, out, 0)


def _mark(scheduler: "Scheduler", index: int) -> Mark:
    return Mark(scheduler.backends[index])


def _run_split(
    schedule: "Schedule",
    split: Split,
    plan: Plan,
    bindings: Bindings,
    observer: Observer | None,
) -> None:
    """Queue a split, in parts where an observer or a sanitizer looks at what its nodes hold."""
    scheduler = schedule.scheduler
    if observer is not None:
        _run_observed(schedule, split, bindings, observer)
    elif scheduler.sanitizer is not None:
        check = partial(run_checked, scheduler.sanitizer, split.nodes)
        scheduler.limit.call(partial(check, plan, bindings), plan.backend.device)
    else:
        scheduler.limit.call(plan.run, plan.backend.device)


def _run_observed(
    schedule: "Schedule", split: Split, bindings: Bindings, observer: Observer
) -> None:
    """Run a split in segments that end where the observer wants to look."""
    backend = schedule.scheduler.backends[split.backend]
    start = 0
    for i, node in enumerate(split.nodes):
        wanted = not node.is_view and observer.wants(node)
        if not wanted and i < len(split.nodes) - 1:
            continue
        segment = Part(split.nodes[start : i + 1], bindings)
        start = i + 1
        call = schedule.scheduler.limit.call
        call(partial(backend.compute, segment), backend.device)
        if not wanted:
            continue
        if not observer.see(node, call(partial(read, node, bindings), backend.device)):
            raise Aborted(f"{node}: the observer cancelled the run here")
