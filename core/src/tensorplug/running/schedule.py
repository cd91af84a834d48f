"""`Schedule`: the immutable result of scheduling a graph, and its memory."""

from collections import ChainMap
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, final

from tensorplug.device.abilities import SupportsNotes
from tensorplug.device.backend import Backend
from tensorplug.device.buffer import Buffer
from tensorplug.device.lifetime import Resource
from tensorplug.device.part import Part
from tensorplug.device.placing import host_data
from tensorplug.errors import GraphError, NotAllocated
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Array, Place, Tensor
from tensorplug.planning.explain import Explanation, explain
from tensorplug.planning.memory import MemoryMap
from tensorplug.planning.planned import PlanRequest, plan_splits
from tensorplug.planning.program import (
    Program,
    Upload,
    Value,
    flight_program,
    observed,
    reading,
    run_program,
)
from tensorplug.planning.split import Split
from tensorplug.running.arena import Arena
from tensorplug.running.batch import Batch, batch_memory, copied_to, joined_copies
from tensorplug.running.failure import Attempt
from tensorplug.running.ids import check_constants, check_given, given_ids
from tensorplug.running.lost import MemoryLost
from tensorplug.running.results import InFlight, Results
from tensorplug.running.run import Observer, run, shown
from tensorplug.running.until import until_done
from tensorplug.running.values import Values

if TYPE_CHECKING:
    from tensorplug.running.recovery.restart import Restart
    from tensorplug.running.runs import Runs

T = TypeVar("T")


class Schedule(Resource):
    """A planned graph, which can run any number of times. Made by `Scheduler.schedule`.

    >>> x = tp.input("x", (4,), tp.F32)
    >>> y = x * 2
    >>> with tp.open("cpu") as cpu, tp.Scheduler([cpu]) as scheduler:
    ...     run = scheduler.schedule(y)
    ...     [run.run({x: np.full(4, n)})[y][0].item() for n in range(3)]
    [0.0, 2.0, 4.0]
    """

    batches: int
    """How many batches may be in flight: 1, or with `parallel=True` 4 or one for each stream."""
    graph: Graph
    """The graph as the user built it."""

    def __init__(self, runs: "Runs", request: PlanRequest) -> None:
        super().__init__(runs.scheduler)
        self.runs = runs
        self.batches = runs.settings.batches
        self.graph = request.graph
        self._request = request
        self._cut: Tensor | None = None
        self._batches: list[Batch] = []
        self.values = Values(self.graph)
        try:
            self.prepare()
            self._check_memory()
            self.given_ids = given_ids(self.graph)
            check_constants(self.graph)
        except BaseException:
            self._close_all(force=False)  # not close(): the caller has the turn
            raise

    def prepare(self, start: "Restart | None" = None) -> None:
        """Plan for the present devices of the scheduler, unless a plan for them exists.

        For a run that resumes from `start`, a split begins at its first node.
        """
        cut = None if start is None else start.first_of(self.graph)
        # Planning again would lose the values of inputs that the graph changes.
        if self._batches and (cut is self._cut or (cut is None and self.values.changed)):
            return
        self.release()
        self._cut = cut
        self.planned = self.runs.plan(self._request, cut)
        self._unfused: MemoryMap | None = None
        self._write_programs()
        place_of = self.runs.lost.place_of
        self._memory = {place_of(t).buffer for t in self.graph.leafs if t.place is not None}
        try:
            arena, planned = self.runs.fleet.arena, self.planned
            arena.grow(planned.memory.sizes)
            for lane in self.runs.lanes():
                lane.arena.grow(planned.lane.sizes)
                self._batches.append(Batch(lane, *batch_memory(planned, arena)))
            self.ready(self._batches[0])
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release plans and memory; the next run plans again."""
        batches, self._batches = self._batches, []
        self.values.forget()
        self.runs.fleet.arena.leave(self)
        with ExitStack() as stack:
            for flight in tuple(self.runs.flying):
                if flight.attempt.schedule is self:
                    flight.drain()
            for batch in batches:
                batch.lane.arena.leave(self)
                stack.callback(self.runs.fleet.arena.give, batch.buffers)
                stack.callback(self.runs.plans.give, batch.plans, close=self.runs.scheduler.closed)

    def forget(self) -> object:
        """Drop plans and memory without closing them, and return them."""
        forgotten, self._batches = self._batches, []
        self.values.forget()
        return forgotten

    # --- facts -----------------------------------------------------------------------------

    @property
    def splits(self) -> tuple[Split, ...]:
        """Runs of nodes on one backend, in order."""
        return self.planned.splits

    @property
    def uploads(self) -> Program:
        """The uploads of all inputs, with which a program begins."""
        return tuple(self._given.values())

    @property
    def program(self) -> Program:
        """All steps of a run; of a batch in flight if several may be."""
        program = self._flight_program if self.batches > 1 else self._run_program
        return (*self.uploads, *program)

    def device_of(self, tensor: Tensor) -> str:
        """Name of the device that computes or holds `tensor`."""
        if tensor not in self.planned.where:
            raise GraphError(f"{tensor}: is not part of {self!r}")
        return self.home_of(tensor).name

    def home_of(self, tensor: Tensor) -> Backend:
        """The backend that computes or holds `tensor`."""
        return self.runs.fleet.backends[self.planned.where[tensor].stream]

    def private_buffers(self) -> list[Buffer]:
        """The memory of inputs that keep their values between runs, of each batch."""
        return [buffer for batch in self._batches for buffer in batch.buffers]

    def explain(self) -> Explanation:
        """What runs where, and why: a table with `str()`, data with `.to_json()`."""
        plans = self._batches[0].plans if self._batches else []
        notes = ChainMap(*(dict(p.notes()) for p in plans if isinstance(p, SupportsNotes)))
        pools = self.runs.fleet.arena.pools
        return explain(self.planned, self.program, self.runs.streams, pools, notes)

    # --- running ---------------------------------------------------------------------------

    @final
    def __call__(self, inputs: Mapping[Tensor, Any] | None = None) -> Results:
        """Compute the graph once: `run` without an observer, as in `schedule({x: batch})[y]`."""
        return self.run(inputs)

    @final
    def run(
        self, inputs: Mapping[Tensor, Any] | None = None, *, observer: Observer | None = None
    ) -> Results:
        """Compute the graph once. Inputs that are not given keep the value of the run before.

        Transient inputs have no value after a run and must be given. Returns when the work is
        queued; reading a result waits for it. Raises what backends raise; the schedule can then be
        run again.
        """
        self.runs.check_processes()
        attempt = Attempt(self.runs, self, inputs=self._taken(inputs))
        return until_done(attempt, partial(self._queue, observer, self._results))

    @final
    def submit(
        self, inputs: Mapping[Tensor, Any] | None = None, *, observer: Observer | None = None
    ) -> InFlight:
        """Queue one batch and the reading of its outputs; up to `batches` are in flight at once.

        If that many are in flight, it first waits for the oldest. With an `observer` it waits for
        all batches in flight and for each node that the observer looks at.
        """
        self.runs.check_processes()
        taken = self._taken(inputs)
        attempt = Attempt(self.runs, self, inputs=taken, in_flight=True)
        return until_done(attempt, partial(self._queue, observer, partial(self._flight, observer)))

    def _taken(self, inputs: Mapping[Tensor, Any] | None) -> Mapping[Tensor, Any]:
        """Check the inputs of a run; copies of them if a later attempt may need them again.

        Raises GraphError, NotAllocated.
        """
        inputs = {} if inputs is None else inputs
        if not isinstance(inputs, Mapping):
            raise GraphError(
                f"inputs is of type {type(inputs).__name__}; give data by tensors, as in "
                "schedule({x: batch})"
            )
        known = self.graph.inputs
        for tensor in inputs:
            if tensor not in known:
                names = ", ".join(str(t) for t in known) or "none"
                raise GraphError(f"{tensor}: is not an input of {self.graph}; its inputs: {names}")
        for tensor in self.planned.transient:
            if tensor not in inputs:
                raise NotAllocated(f"{tensor}: is transient; give it to every run()")
        check_given(self.given_ids, inputs)
        if self.runs.recovery is None:
            return inputs
        return {t: host_data(t, data).copy() for t, data in inputs.items()}

    def _check_memory(self) -> None:
        """Raise Closed where the memory of weights or of other placed tensors was closed."""
        for buffer in self._memory:
            buffer.check_open()

    def _queue(
        self, observer: Observer | None, give: Callable[[Attempt], T], attempt: Attempt
    ) -> T:
        """Upload the inputs of an attempt and queue its program; return what `give` returns."""
        runs, fleet, context = self.runs, self.runs.fleet, attempt.context
        self.check_open()
        if runs.lost.owed:
            raise MemoryLost(self.graph)
        self.prepare(attempt.start)
        self._check_memory()
        if (
            fleet.loose
            or not attempt.in_flight
            # An observer looks at nodes in memory that all batches share,
            or observer is not None
            # in which transient inputs lie if each schedule has one batch.
            or (runs.flying and self.batches == 1 and self.planned.transient)
            or any(self._clashes(flight.attempt.schedule) for flight in runs.flying)
        ):
            runs.wait(attempt)
        context.batch = self.take_batch(attempt)
        if attempt.start is not None:
            # The rest of a program may lack the first of joined copies.
            context.batch = replace(context.batch, joined={})
        fleet.loose = not attempt.in_flight
        program, calls = self._program(attempt), fleet.calls
        if observer is not None:
            context.batch = self.unfused(context.batch)
            program, calls = observed(program, observer.wants), shown(observer, calls)
        attempt.program = program
        runs.count += 1
        context.given = attempt.inputs
        if runs.recovery is not None:
            self.values.keep(attempt)
        uploads = self.values.uploads(attempt, self._batches, self._given, runs.count)
        run(chain(uploads, program), fleet, context, calls)
        return give(attempt)

    def _clashes(self, other: "Schedule | None") -> bool:
        """True if another schedule writes tensors that this one uses on another stream, or reverse.

        Marks order the batches of one schedule; between schedules only the order of a stream does.
        """
        if other is None or other is self:
            return False
        shared = self.planned.touched.keys() & other.planned.touched.keys()
        touched = ((self.planned.touched[root], other.planned.touched[root]) for root in shared)
        return any((a.written or b.written) and len(a.streams | b.streams) > 1 for a, b in touched)

    def _results(self, attempt: Attempt) -> Results:
        context = attempt.context
        return Results(self, context.batch.bindings, self.runs.count, context.outputs)

    def _flight(self, observer: Observer | None, attempt: Attempt) -> InFlight:
        return InFlight(attempt, partial(self._again, attempt, observer))

    def _again(self, attempt: Attempt, observer: Observer | None) -> Mapping[Tensor, Array]:
        """The outputs of a batch that was in flight when a device failed."""
        again = Attempt(self.runs, self, inputs=self._taken(attempt.inputs))
        again.index = attempt.index
        results = until_done(again, partial(self._queue, observer, self._results))
        return {output: results[output] for output in self.graph.outputs}

    def _upload(self, tensor: Tensor, value: Value) -> Upload:
        return Upload(self.planned.where[tensor].stream, None, tensor, value)

    def _write_programs(self) -> None:
        """Make the programs of a run, and of a batch in flight, after their uploads."""
        splits, where, fleet = self.splits, self.planned.where, self.runs.fleet
        homes = self.planned.output_homes
        end = reading(homes, len(fleet.backends), fleet.queueing)
        self._end = () if self.runs.recovery is None else end
        self._run_program = (*run_program(splits, where), *self._end)
        writers = {t: found.streams for t, found in self.planned.touched.items() if found.written}
        self._flight_program = flight_program(splits, where, homes, writers, fleet.sharers)
        self._given = {t: self._upload(t, Value.GIVEN) for t in self.graph.inputs}

    def _program(self, attempt: Attempt) -> Program:
        """The program of an attempt after its uploads; the rest of it, from a boundary on."""
        start, context = attempt.start, attempt.context
        if start is None:
            return self._flight_program if attempt.in_flight else self._run_program
        context.begun = attempt.skipped = skipped = start.skips(self.splits)
        context.kept = start.values
        kept = (self._upload(root, Value.KEPT) for root in start.values)
        rest, done = self.splits[skipped:], self.splits[:skipped]
        return (*kept, *run_program(rest, self.planned.where, skipped=done), *self._end)

    def take_batch(self, attempt: Attempt) -> Batch:
        """The batch of `attempt`, or the next one; bound to the arena as it is now."""
        if attempt.index is None:
            attempt.index = self._next_batch()
        batch = self._batches[attempt.index]
        if batch.lane.pending is not None:
            batch.lane.pending.reach()
        self.ready(batch)
        return batch

    def _next_batch(self) -> int:
        """The first batch whose lane is free, whose plans may exist; else that of the oldest."""
        flying, pending = self.runs.flying, [batch.lane.pending for batch in self._batches]
        ages = [-1 if flight is None else flying.index(flight) for flight in pending]
        return ages.index(min(ages))

    def ready(self, batch: Batch) -> None:
        """Bind `batch` to the buffers of the arena and of its lane where they changed."""
        arena, lane = self.runs.fleet.arena, batch.lane.arena
        arena.grow(self.planned.memory.sizes)
        lane.grow(self.planned.lane.sizes)
        if batch.generations == (arena.generation, lane.generation):
            return
        self._bind(batch, self.planned.memory)
        self._plan(batch)
        batch.generations = (arena.generation, lane.generation)

    # --- memory ----------------------------------------------------------------------------

    def unfused(self, batch: Batch) -> Batch:
        """`batch` with memory for every node, for an observer, and with the same inputs.

        It has no plans: its splits are computed node by node.
        """
        arena, planned = self.runs.fleet.arena, self.planned
        spares = any(arena.pools[split.stream].only_shared for split in self.splits)
        if not spares and not any(split.groups for split in self.splits):
            return batch
        if self._unfused is None:
            plain = [replace(split, groups=(), stages=()) for split in self.splits]
            self._unfused = plan_splits(
                self.graph,
                planned.where,
                plain,
                arena.pools,
                planned.outside,
                every_node=True,
            )
        arena.grow(self._unfused.sizes)
        spread = replace(batch)
        self._bind(spread, self._unfused)
        return spread

    def _bind(self, batch: Batch, memory: MemoryMap) -> None:
        slots = self._placed(memory, self.runs.fleet.arena)
        batch.places = {**batch.own, **self._placed(self.planned.lane, batch.lane.arena)}
        moved = self.runs.lost.moved
        batch.bindings = Bindings({**moved, **slots, **batch.places})
        # The sanitizer looks at each tensor.
        alone = self.runs.sanitizer is not None
        batch.joined = {} if alone else joined_copies(self.program, batch)
        batch.locals = [
            batch.bindings.with_places(copied_to(split, batch.bindings)) for split in self.splits
        ]

    def _placed(self, memory: MemoryMap, arena: Arena) -> dict[Tensor, Place]:
        """The places that `memory` plans, in the buffers of `arena`."""
        arena.enter(self)
        places = {tensor: arena.place(slot) for tensor, slot in memory.slots.items()}
        for tensor, place in places.items():
            place.buffer.init_tensor(tensor, place.offset)
        return places

    def _plan(self, batch: Batch) -> None:
        for i, (split, bindings) in enumerate(zip(self.splits, batch.locals, strict=True)):
            bound = Part(split.nodes, bindings, groups=split.groups, stages=split.stages)
            if i < len(batch.plans):
                batch.plans[i].rebind(bound)
            else:
                stream = self.runs.fleet.backends[split.stream]
                batch.plans.append(self.runs.plans.take(stream, bound))

    def _apart(self) -> AbstractContextManager[None]:
        return self.runs.turn.closing()

    def _close(self) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.splits)} splits"
        return f"<Schedule {len(self.graph.nodes)} nodes, {state}>"
