"""`Schedule`: the immutable result of scheduling a graph, and its memory."""

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar, final

from tensorplug.device.backend import Backend, SupportsNotes
from tensorplug.device.buffer import Buffer
from tensorplug.device.lifetime import Resource
from tensorplug.device.part import Part
from tensorplug.errors import GraphError, NotAllocated, RunFailed
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Array, Tensor
from tensorplug.planning.explain import Explanation, explain
from tensorplug.planning.layout import Layout, plan_splits
from tensorplug.planning.memory import MemoryMap
from tensorplug.planning.program import (
    Program,
    Upload,
    Value,
    flight_program,
    observed,
    run_program,
)
from tensorplug.planning.split import Split
from tensorplug.running.batch import Batch, batch_memory
from tensorplug.running.failure import Attempt, written
from tensorplug.running.ids import check_constants, check_given, given_ids
from tensorplug.running.recovery.restart import Restart
from tensorplug.running.results import InFlight, Results
from tensorplug.running.run import Observer, Work, run, shown

if TYPE_CHECKING:
    from tensorplug.running.scheduler import Scheduler

T = TypeVar("T")


class Schedule(Resource):
    """A planned graph: run it as often as you like. Made by `Scheduler.schedule`."""

    batches: int
    """How many batches may be in flight: 4 with `parallel=True`, else 1."""

    def __init__(
        self, scheduler: "Scheduler", plan_again: Callable[..., Layout], batches: int
    ) -> None:
        super().__init__(scheduler)
        self.scheduler = scheduler
        self.batches = batches
        self.kept: dict[Tensor, Array] = {}
        """The last values of inputs, where devices may be replaced."""
        self.latest: dict[Tensor, tuple[int, int]] = {}
        """For each input the run that had its last value, and the index of that run's batch."""
        self._plan_again = plan_again
        self._cut: Tensor | None = None
        self._batches: list[Batch] = []
        self._next = 0
        try:
            self.prepare()
            self.given_ids = given_ids(self.graph)
            check_constants(self.graph)
        except BaseException:
            self.close()
            raise

    def prepare(self, start: Restart | None = None) -> None:
        """Plan for the devices that the scheduler has now, unless that is done.

        A split begins where a run goes on from `start`.
        """
        cut = None if start is None else start.first_of(self.graph)
        if self._batches and (cut is self._cut or (cut is None and self._keeps_inputs())):
            return
        self.release()
        self._cut = cut
        self.layout = self._plan_again(cut=cut)
        self._unfused: MemoryMap | None = None
        self._write_programs()
        try:
            self.scheduler.arena.grow(self.layout.memory.sizes)
            for _ in range(self.batches):
                self._batches.append(Batch(*batch_memory(self.layout, self.scheduler.arena)))
            self.ready(self._batches[0])
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give plans and memory back; they come again with the next run."""
        batches, self._batches = self._batches, []
        self.latest = {}
        self.scheduler.arena.leave(self)
        with ExitStack() as stack:
            for batch in batches:
                stack.callback(self.scheduler.arena.give, batch.buffers)
                if batch.pending is not None:
                    batch.pending.abandon()
                for split, plan in zip(self.splits, batch.plans, strict=False):
                    self.scheduler.give_plan(split.backend, plan)

    def _keeps_inputs(self) -> bool:
        """True where the graph changes inputs: planning again would lose their values."""
        return bool(self.changed)

    def forget(self) -> object:
        """Let go of plans and memory without closing them, and return them."""
        forgotten, self._batches = self._batches, []
        self.latest = {}
        return forgotten

    # --- facts -----------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """The graph as the user built it."""
        return self.layout.graph

    @property
    def splits(self) -> tuple[Split, ...]:
        """Runs of nodes on one backend, in order."""
        return self.layout.splits

    def backend_of(self, tensor: Tensor) -> str:
        """Name of the device that computes or holds `tensor`."""
        if tensor not in self.layout.where:
            raise GraphError(f"{tensor}: is not part of {self!r}")
        return self.home_of(tensor).name

    def home_of(self, tensor: Tensor) -> Backend:
        """The backend that computes or holds `tensor`."""
        return self.scheduler.backends[self.layout.where[tensor].backend]

    def private_buffers(self) -> list[Buffer]:
        """The memory that batches have for themselves."""
        return [buffer for batch in self._batches for buffer in batch.buffers]

    def explain(self) -> Explanation:
        """What runs where, and why: a table with `str()`, data with `.to_json()`."""
        plans = self._batches[0].plans if self._batches else []
        notes = ChainMap(*(dict(p.notes()) for p in plans if isinstance(p, SupportsNotes)))
        return explain(self.layout, self.scheduler.field, self.scheduler.arena.pools, notes)

    # --- running ---------------------------------------------------------------------------

    @final
    def __call__(self, inputs: Mapping[Tensor, Any] | None = None) -> Results:
        """Compute the graph once: `run` without an observer, as in `schedule({x: batch})[y]`."""
        return self.run(inputs)

    @final
    def run(
        self, inputs: Mapping[Tensor, Any] | None = None, *, observer: Observer | None = None
    ) -> Results:
        """Compute the graph once. Inputs not given keep their last value; transient ones lose it.

        The last value is that of the run before, whichever batch that was.
        Returns when the work is queued; reading a result waits for it. Raises what backends raise;
        the schedule can then be run again.
        """
        self.scheduler.check_processes()
        return self._until_done(self._run, self._taken(inputs or {}), observer)

    @final
    def submit(
        self, inputs: Mapping[Tensor, Any] | None = None, *, observer: Observer | None = None
    ) -> InFlight:
        """Queue one batch and the reading of its outputs; up to `batches` are in flight at once.

        Waits for the oldest batch where all places are taken; with an `observer`, for all batches
        in flight and for each node that it looks at.
        """
        self.scheduler.check_processes()
        return self._until_done(self._submit, self._taken(inputs or {}), observer, in_flight=True)

    def _taken(self, inputs: Mapping[Tensor, Any]) -> Mapping[Tensor, Any]:
        """The inputs of a run, which no later attempt finds changed.

        Raises GraphError, NotAllocated.
        """
        known = self.graph.inputs
        for tensor in inputs:
            if tensor not in known:
                names = ", ".join(str(t) for t in known) or "none"
                raise GraphError(f"{tensor}: is no input of {self.graph}; its inputs: {names}")
        for tensor in self.layout.transient:
            if tensor not in inputs:
                raise NotAllocated(f"{tensor}: is transient; give it to every run()")
        check_given(self.given_ids, inputs)
        return self.scheduler.rescue.take(inputs)

    def _until_done(
        self,
        queue: Callable[[Attempt, Mapping[Tensor, Any], Observer | None], T],
        inputs: Mapping[Tensor, Any],
        observer: Observer | None,
        index: int | None = None,
        *,
        in_flight: bool = False,
    ) -> T:
        """Queue a run on the next batch, or that of `index`; again where a device is left out."""
        scheduler = self.scheduler
        start: Restart | None = None
        while True:
            attempt = Attempt(scheduler, self, index=index, in_flight=in_flight, start=start)
            try:
                with scheduler.turn, attempt:
                    self.check_open()
                    self.prepare(start)
                    if not scheduler.rescue.owes:
                        return queue(attempt, inputs, observer)
                scheduler.rescue.restore()
            except RunFailed as failure:
                start = scheduler.rescue.recover(failure, attempt)
                inputs, index = attempt.inputs or inputs, attempt.index
            finally:
                # A device that hangs may keep its memory, and others ask when it is free.
                attempt.work.forget_memory()

    def _run(
        self, attempt: Attempt, inputs: Mapping[Tensor, Any], observer: Observer | None
    ) -> Results:
        """Queue one run after all work that is queued was waited for."""
        scheduler = self.scheduler
        scheduler.wait(attempt)
        attempt.work.batch = self.take_batch(attempt)
        scheduler.fleet.loose = True
        self._queue(attempt, inputs, self._program(attempt.start), observer)
        values = scheduler.rescue.finish(attempt, self)
        return Results(self, attempt.work.batch.bindings, scheduler.runs, values)

    def _submit(
        self, attempt: Attempt, inputs: Mapping[Tensor, Any], observer: Observer | None
    ) -> InFlight:
        """Queue one run and the reading of its outputs, next to batches already in flight."""
        if self.scheduler.fleet.loose or observer is not None:
            # What an observer looks at lies elsewhere in the memory that all batches share.
            self.scheduler.wait(attempt)
        batch = attempt.work.batch = self.take_batch(attempt)
        self._queue(attempt, inputs, self._flight_program, observer)
        batch.pending = InFlight(attempt, partial(self._again, attempt, observer))
        return batch.pending

    def _again(self, attempt: Attempt, observer: Observer | None) -> Mapping[Tensor, Array]:
        """The outputs of a batch that was in flight when a device failed."""
        inputs = self._taken(attempt.inputs or {})
        results = self._until_done(self._run, inputs, observer, attempt.index)
        return {output: results[output] for output in self.graph.outputs}

    def _queue(
        self,
        attempt: Attempt,
        inputs: Mapping[Tensor, Any],
        program: Program,
        observer: Observer | None,
    ) -> None:
        """Upload the inputs of a run, and queue its program."""
        scheduler, fleet, work = self.scheduler, self.scheduler.fleet, attempt.work
        calls = fleet.calls
        if observer is not None:
            work.batch = self.unfused(work.batch)
            program, calls = observed(program, observer.wants), shown(observer, calls)
        if attempt.start is not None:
            work.begun = attempt.skipped = attempt.start.skips(self.splits)
            work.kept = attempt.start.values
        scheduler.runs += 1
        run(self._uploads(attempt, inputs), fleet, work, fleet.calls)
        for tensor in self.changed:
            self._note_value(tensor, attempt, new=True)
        run(program, fleet, work, calls)

    def _uploads(self, attempt: Attempt, inputs: Mapping[Tensor, Any]) -> Iterator[Upload]:
        """Inputs that are given, and those whose last value lies in another batch.

        Behind each upload it is noted which batch has the value. Raises NotAllocated.
        """
        work = attempt.work
        work.given = given = self.scheduler.rescue.keep(attempt, work.batch, inputs)
        if len(given) < len(self.graph.inputs):
            work.last = self._last_batches(work)
        for tensor in given:
            yield self._given[tensor]
            self._note_value(tensor, attempt, new=True)
        for tensor in work.last:
            yield self._upload(tensor, Value.LAST)
            self._note_value(tensor, attempt, new=False)

    def _last_batches(self, work: Work) -> Mapping[Tensor, Batch]:
        """For inputs that are not given: the other batch that has the last value.

        Raises NotAllocated.
        """
        others = [t for t in self.graph.inputs if t not in work.given]
        for tensor in others:
            if tensor not in self.latest:
                raise NotAllocated(f"{tensor}: has no value yet; give it to run()")
        found = {t: self.last_batch(t) for t in others if not self.is_latest(t, work.batch)}
        for tensor, last in found.items():
            if tensor in self.changed and last.pending is not None:
                # The value is what the graph makes of it there.
                last.pending.reach()
        return found

    def _upload(self, tensor: Tensor, value: Value) -> Upload:
        return Upload(self.layout.where[tensor].backend, None, tensor, value)

    def _write_programs(self) -> None:
        """What a run, and a batch next to others in flight, are after their uploads."""
        splits, where, outputs = self.splits, self.layout.where, self.graph.outputs
        sharers = self.scheduler.fleet.sharers
        self._run_program = run_program(splits, where)
        self._flight_program = flight_program(splits, where, outputs, sharers)
        self._given = {t: self._upload(t, Value.GIVEN) for t in self.graph.inputs}

    def _program(self, start: Restart | None) -> Program:
        """What a run is after its inputs are uploaded; the rest of it, behind `start`."""
        if start is None:
            return self._run_program
        skipped = start.skips(self.splits)
        kept = (self._upload(root, Value.KEPT) for root in start.values)
        rest, done = self.splits[skipped:], self.splits[:skipped]
        return (*kept, *run_program(rest, self.layout.where, skipped=done))

    def take_batch(self, attempt: Attempt) -> Batch:
        """The batch of `attempt`, or the next one; bound to the arena as it is now."""
        if attempt.index is None:
            attempt.index = self._next
            self._next = (self._next + 1) % len(self._batches)
        batch = self._batches[attempt.index]
        if batch.pending is not None:
            batch.pending.reach()
        self.ready(batch)
        return batch

    def ready(self, batch: Batch) -> None:
        """Bind `batch` to the arena's buffers where they changed."""
        arena = self.scheduler.arena
        arena.grow(self.layout.memory.sizes)
        if batch.generation == arena.generation:
            return
        self._bind(batch, self.layout.memory)
        self._plan(batch)
        batch.generation = arena.generation

    # --- last values of inputs -------------------------------------------------------------

    @cached_property
    def changed(self) -> tuple[Tensor, ...]:
        """Inputs that the graph writes: their last value is what it made of them."""
        return tuple(root for root in written(self.graph.nodes) if root.is_input)

    def last_batch(self, tensor: Tensor) -> Batch:
        """The batch of the run that had the last value of an input."""
        return self._batches[self.latest[tensor][1]]

    def _note_value(self, tensor: Tensor, attempt: Attempt, *, new: bool) -> None:
        """Note that the batch of `attempt` has the last value of an input, perhaps a `new` one."""
        batch = attempt.work.batch
        if tensor in batch.places:
            if new:
                assert attempt.index is not None
                self.latest[tensor] = (self.scheduler.runs, attempt.index)
            batch.values[tensor] = self.latest[tensor][0]

    def is_latest(self, tensor: Tensor, batch: Batch) -> bool:
        """Whether `batch` has the last value of an input."""
        return tensor in self.latest and batch.values.get(tensor) == self.latest[tensor][0]

    # --- memory ----------------------------------------------------------------------------

    def unfused(self, batch: Batch) -> Batch:
        """`batch` with memory for every node, for who looks at them; its inputs are the same.

        It has no plans: its splits are computed node by node.
        """
        arena, layout = self.scheduler.arena, self.layout
        spares = any(arena.pools[split.backend].only_shared for split in self.splits)
        if not spares and not any(split.groups for split in self.splits):
            return batch
        if self._unfused is None:
            plain = [replace(split, groups=(), stages=()) for split in self.splits]
            self._unfused = plan_splits(
                self.graph,
                layout.where,
                plain,
                arena.pools,
                layout.private,
                every_node=True,
            )
        arena.grow(self._unfused.sizes)
        spread = replace(batch)
        self._bind(spread, self._unfused)
        return spread

    def _bind(self, batch: Batch, memory: MemoryMap) -> None:
        self.scheduler.arena.enter(self)
        slots = {t: self.scheduler.arena.place(slot) for t, slot in memory.slots.items()}
        for tensor, place in slots.items():
            place.buffer.init_tensor(tensor, place.offset)
        moved = self.scheduler.rescue.moved
        batch.bindings = Bindings({**moved, **slots, **batch.places})
        batch.locals = [
            batch.bindings.with_places(
                {source: batch.bindings.where(copy) for source, copy in split.local.items()}
            )
            for split in self.splits
        ]

    def _plan(self, batch: Batch) -> None:
        for i, (split, bindings) in enumerate(zip(self.splits, batch.locals, strict=True)):
            bound = Part(split.nodes, bindings, groups=split.groups, stages=split.stages)
            if i < len(batch.plans):
                batch.plans[i].rebind(bound)
            else:
                batch.plans.append(self.scheduler.take_plan(split.backend, bound))

    def _close(self) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.splits)} splits"
        return f"<Schedule {len(self.graph.nodes)} nodes, {state}>"
