"""Runs a schedule: inputs up, copies between devices, one plan per split, outputs down."""

import contextlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tensorplug.backend import Backend, order_after, read_async, tell_of_move
from tensorplug.buffer import as_bytes
from tensorplug.errors import Aborted, GraphError, NotAllocated, StaleResult, TensorplugError
from tensorplug.graph import Bindings, BoundGraph, Graph
from tensorplug.marks import Mark
from tensorplug.placing import host_data
from tensorplug.scheduler.experts import copy_used_experts, expert_ids, uses_few_experts
from tensorplug.scheduler.split import Copy, Split
from tensorplug.tensor import Array, Storage, Tensor, array_view
from tensorplug.transfer import copy as copy_tensor
from tensorplug.transfer import copy_async, has_standard_layout, read

if TYPE_CHECKING:
    from tensorplug.scheduler.schedule import Batch, Schedule
    from tensorplug.scheduler.scheduler import Scheduler


class Observer(Protocol):
    """Looks at values while a graph runs; every value it wants costs a synchronisation."""

    def wants(self, node: Tensor) -> bool:
        """Whether to stop after `node` and show it."""
        ...

    def see(self, node: Tensor, value: Array) -> bool:
        """Take the value of `node`; return False to cancel the run, which then raises Aborted."""
        ...


class Results:
    """The outputs of one run. Valid until the scheduler runs anything again."""

    def __init__(self, schedule: "Schedule", bindings: Bindings, serial: int) -> None:
        self._schedule = schedule
        self._bindings = bindings
        self._serial = serial

    def __getitem__(self, output: Tensor) -> Array:
        """Wait for `output` and copy it to the host. Raises StaleResult, GraphError."""
        self._check(output)
        self._schedule.scheduler.synchronize()
        _host_touches(self._schedule.scheduler, output, self._bindings.where(output))
        with span(self._schedule.scheduler, f"read {_label(output)}", bytes=output.nbytes):
            return read(output, self._bindings)

    def tensor(self, output: Tensor) -> Storage:
        """Where `output` lies on its device, without waiting or copying."""
        self._check(output)
        return self._bindings.where(output)

    def _check(self, output: Tensor) -> None:
        graph = self._schedule.graph
        if output not in graph.outputs and output not in graph.effects:
            raise GraphError(f"{output}: is no output of {graph}; name it among the outputs")
        persistent = output.root.storage is not None
        if not persistent and self._serial != self._schedule.scheduler.runs:
            raise StaleResult(
                f"{output}: its memory was used by a later run of the same scheduler; read it "
                "before that"
            )


class InFlight:
    """A batch that was submitted; `result()` waits for it."""

    def __init__(
        self,
        outputs: Mapping[Tensor, Array],
        waits: list[Mark],
        scheduler: "Scheduler",
    ) -> None:
        self._outputs = dict(outputs)
        self._waits = waits
        self._scheduler = scheduler

    @property
    def done(self) -> bool:
        """Whether waiting would return at once."""
        return all(mark.done for mark in self._waits)

    def wait(self) -> None:
        """Block until the batch is done; raises what its work raised."""
        if not self._waits:
            return
        with span(self._scheduler, "wait for a batch"):
            for mark in self._waits:
                mark.synchronize()
        self._waits = []

    def abandon(self) -> None:
        """Wait, and let errors of the batch go: nobody will read it."""
        with contextlib.suppress(TensorplugError):
            self.wait()

    def __getitem__(self, output: Tensor) -> Array:
        """Wait, and return the copy of `output` in host memory."""
        if output not in self._outputs:
            raise GraphError(f"{output}: is no output of the submitted graph")
        self.wait()
        if self._scheduler.sanitizer is not None:
            self._scheduler.sanitizer.shows(output, self._outputs[output])
        return self._outputs[output]


def run(schedule: "Schedule", inputs: Mapping[Tensor, Any], observer: Observer | None) -> Results:
    """Queue one run on the next batch of `schedule`."""
    scheduler = schedule.scheduler
    with scheduler.turn:
        scheduler.synchronize()
        batch = schedule.take_batch()
        if observer is not None:
            batch = schedule.unfused(batch)
        scheduler.runs += 1
        _upload(schedule, batch, inputs)
        scheduler.loose = True
        with _settled_on_failure(schedule):
            for split, plan, bindings in zip(
                schedule.splits, batch.plans, batch.locals, strict=True
            ):
                _bring(schedule, batch, split)
                with _split_span(scheduler, split):
                    if observer is None:
                        plan.run()
                    else:
                        _run_observed(schedule, split, bindings, observer)
        return Results(schedule, batch.bindings, scheduler.runs)


def submit(schedule: "Schedule", inputs: Mapping[Tensor, Any]) -> InFlight:
    """Queue one run and the reading of its outputs, beside batches already in flight."""
    scheduler = schedule.scheduler
    with scheduler.turn:
        if scheduler.loose:
            scheduler.synchronize()
        batch = schedule.take_batch()
        scheduler.runs += 1
        _upload(schedule, batch, inputs)
        with _settled_on_failure(schedule):
            for split, plan in zip(schedule.splits, batch.plans, strict=True):
                _enter(scheduler, split)
                _hold(scheduler, _bring(schedule, batch, split))
                with _split_span(scheduler, split):
                    plan.run()
                _leave(scheduler, split)
            outputs = {t: _read_later(schedule, batch, t) for t in schedule.graph.outputs}
            where = schedule.layout.where
            busy = {s.backend for s in schedule.splits} | {where[t].backend for t in outputs}
            waits = [_mark(scheduler, i) for i in busy]
        batch.pending = InFlight(outputs, waits, scheduler)
        return batch.pending


def span(
    scheduler: "Scheduler",
    name: str,
    backend: Backend | None = None,
    source: Backend | None = None,
    **facts: Any,
) -> AbstractContextManager[None]:
    """What happens inside, in the trace of `scheduler` if it has one."""
    trace = scheduler.trace
    return nullcontext() if trace is None else trace.span(name, backend, source, **facts)


def _label(tensor: Tensor) -> str:
    return tensor.name or f"{tensor.op} #{tensor.serial}"


def _split_span(scheduler: "Scheduler", split: Split) -> AbstractContextManager[None]:
    name = f"{split.nodes[0].op} to {split.nodes[-1].op}"
    return span(scheduler, name, scheduler.backends[split.backend], nodes=len(split.nodes))


@contextlib.contextmanager
def _settled_on_failure(schedule: "Schedule") -> Any:
    """After an error wait for what was queued, so that nothing runs behind the caller's back."""
    try:
        yield
    except BaseException:
        for backend in schedule.scheduler.backends:
            with contextlib.suppress(TensorplugError):
                backend.synchronize()
        schedule.scheduler.readers.clear()
        schedule.scheduler.users.clear()
        raise


def _upload(schedule: "Schedule", batch: "Batch", inputs: Mapping[Tensor, Any]) -> None:
    known = schedule.graph.inputs
    for tensor in inputs:
        if tensor not in known:
            names = ", ".join(str(t) for t in known) or "none"
            raise GraphError(f"{tensor}: is no input of {schedule.graph}; its inputs: {names}")
    missing = [t for t in known if t not in inputs and t not in batch.written]
    if missing:
        raise NotAllocated(f"{missing[0]}: has no value yet; give it to run()")
    for tensor, data in inputs.items():
        place = batch.bindings.where(tensor)
        _host_touches(schedule.scheduler, tensor, place, writes=True)
        with span(schedule.scheduler, f"write {_label(tensor)}", bytes=tensor.nbytes):
            place.buffer.write_tensor(tensor, place.offset, as_bytes(host_data(tensor, data)))
        if tensor in batch.places:
            batch.written.add(tensor)


def _enter(scheduler: "Scheduler", split: Split) -> None:
    """Wait for earlier batches, and other schedules, that use the memory in which `split` works."""
    then = scheduler.backends[split.backend]
    # The arena is shared by the batches: what others still copy from it must be read.
    for mark in scheduler.readers.pop(split.backend, {}).values():
        _order_mark(scheduler, mark, then)
    user = scheduler.users.get(scheduler.arena.pools[split.backend])
    if user is not None and user.stream is not then:
        _order_mark(scheduler, user, then)


def _leave(scheduler: "Scheduler", split: Split) -> None:
    """Note who uses memory of others from now on: lent to `split`, or shared with it."""
    backend = scheduler.backends[split.backend]
    _hold(scheduler, ((lender, backend) for lender in split.after))
    if len(scheduler.sharers[split.backend]) > 1:
        scheduler.users[scheduler.arena.pools[split.backend]] = Mark(backend)


def _bring(schedule: "Schedule", batch: "Batch", split: Split) -> list[tuple[int, Backend]]:
    """Wait for who still reads what `split` overwrites, and make the copies that it reads.

    Returns which lender's memory which stream reads for them.
    """
    scheduler = schedule.scheduler
    target = scheduler.backends[split.backend]
    lent: list[tuple[int, Backend]] = []
    for reader in split.after:
        with span(scheduler, f"wait for {scheduler.backends[reader].name}", target):
            order_after(scheduler.backends[reader], target)
    for copy in split.copies:
        if copy.source.nbytes:
            origin, size = scheduler.backends[copy.origin], copy.source.nbytes
            _about(scheduler, copy.source)
            with span(scheduler, f"copy {_label(copy.source)}", target, origin, bytes=size):
                stream = _copy(schedule, batch, split, copy)
            if stream is not None:
                lent.append((copy.origin, stream))
    return lent


def _order_mark(scheduler: "Scheduler", mark: Mark, then: Backend) -> None:
    with span(scheduler, f"wait for {mark.stream.name}", then):
        mark.order(then)


def _copy(schedule: "Schedule", batch: "Batch", split: Split, copy: Copy) -> Backend | None:
    """Make one copy, or queue it; returns the stream that still reads its source, if any."""
    backends, bindings = schedule.scheduler.backends, batch.bindings
    origin, target = backends[copy.origin], backends[split.backend]
    start, end = bindings.where(copy.source), bindings.where(copy.target)
    if not (has_standard_layout(start.buffer) and has_standard_layout(end.buffer)):
        origin.synchronize()
        target.synchronize()
        tell_of_move(target, None, start, end, copy.source.nbytes)
        copy_tensor(copy.source, copy.target, bindings, bindings)
        return None
    if uses_few_experts(copy, split):
        chooser = backends[schedule.layout.where[expert_ids(split).root].backend]
        return copy_used_experts(origin, target, chooser, copy, split, bindings)
    staging = partial(_staging, batch, copy.target)
    return copy_async(origin, target, start, end, copy.source.nbytes, staging)


def _staging(batch: "Batch", target: Tensor, size: int) -> Array:
    """Host memory of a batch, for a copy to `target`: free again when the batch is done."""
    if target not in batch.staging:
        batch.staging[target] = np.empty(size, np.uint8)
    return batch.staging[target]


def _read_later(schedule: "Schedule", batch: "Batch", output: Tensor) -> Array:
    home = schedule.layout.where[output].backend
    backend = schedule.scheduler.backends[home]
    out = np.empty(output.nbytes, np.uint8)
    if output.nbytes:
        _about(schedule.scheduler, output)
        with span(schedule.scheduler, f"read {_label(output)}", backend, bytes=output.nbytes):
            read_async(backend, batch.bindings.where(output), out)
        _hold(schedule.scheduler, [(home, backend)])
    return array_view(output, out, 0)


def _hold(scheduler: "Scheduler", lent: Iterable[tuple[int, Backend]]) -> None:
    """Let all streams that compute in the memory of a lender wait for its reader as it is now.

    What the reader is given later holds nobody up.
    """
    marks: dict[Backend, Mark] = {}
    for lender, reader in lent:
        for i in scheduler.sharers[lender]:
            if scheduler.backends[i] is not reader:
                if reader not in marks:
                    marks[reader] = Mark(reader)
                scheduler.readers.setdefault(i, {})[reader] = marks[reader]


def _mark(scheduler: "Scheduler", index: int) -> Mark:
    return Mark(scheduler.backends[index])


def _about(scheduler: "Scheduler", tensor: Tensor) -> None:
    if scheduler.sanitizer is not None:
        scheduler.sanitizer.about(tensor)


def _host_touches(
    scheduler: "Scheduler", tensor: Tensor, place: Storage, *, writes: bool = False
) -> None:
    if scheduler.sanitizer is not None:
        scheduler.sanitizer.touches(tensor, place, writes=writes)


def _run_observed(
    schedule: "Schedule", split: Split, bindings: Bindings, observer: Observer
) -> None:
    """Run a split in segments that end where the observer wants to look."""
    backend = schedule.scheduler.backends[split.backend]
    start = 0
    for i, node in enumerate(split.nodes):
        wanted = schedule.graph.computes(node) and observer.wants(node)
        if not wanted and i < len(split.nodes) - 1:
            continue
        segment: Graph = schedule.graph.part(split.nodes[start : i + 1])
        start = i + 1
        backend.compute(BoundGraph(segment, bindings))
        if wanted and not observer.see(node, read(node, bindings)):
            raise Aborted(f"{node}: the observer cancelled the run here")
