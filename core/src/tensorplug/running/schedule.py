"""`Schedule`: the immutable result of scheduling a graph, and its memory."""

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, final

from tensorplug.device.backend import Backend, Plan, SupportsNotes
from tensorplug.device.buffer import Buffer, BufferType
from tensorplug.device.lifetime import Resource
from tensorplug.device.part import Part
from tensorplug.device.placing import allocate
from tensorplug.errors import GraphError
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Array, Storage, Tensor
from tensorplug.planning.assign import Choice, Choices
from tensorplug.planning.explain import Explanation, explain
from tensorplug.planning.memory import MemoryMap, check_leafs, plan_memory
from tensorplug.planning.program import Program, Upload, Value, flight_program, run_program
from tensorplug.planning.split import Split
from tensorplug.planning.timeline import kept, timeline
from tensorplug.running.arena import Arena
from tensorplug.running.execute import run, submit
from tensorplug.running.failure import Attempt, written
from tensorplug.running.ids import check_constants, given_ids
from tensorplug.running.recovery.restart import Restart
from tensorplug.running.results import InFlight, Results
from tensorplug.running.run import Observer

if TYPE_CHECKING:
    from tensorplug.running.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Layout:
    """What planning found out about a graph: choices, splits and memory map. No memory is held."""

    graph: Graph
    where: Choices
    splits: tuple[Split, ...]
    memory: MemoryMap
    private: tuple[Tensor, ...]
    """Leafs whose memory belongs to one batch: inputs, and with several batches the copies too."""
    transient: tuple[Tensor, ...]
    """Inputs that every run must be given."""


def lay_out(
    graph: Graph,
    where: Choices,
    splits: tuple[Split, ...],
    pools: Sequence[BufferType],
    *,
    transient: Iterable[Tensor],
    batches: int,
) -> Layout:
    """Plan the memory of a graph that is cut into `splits`."""
    check_leafs(graph.leafs)
    shared = frozenset(transient)
    private = [t for t in graph.inputs if t not in shared or batches > 1]
    if batches > 1:
        private.extend(copy.target for split in splits for copy in split.copies)
    memory = _plan_splits(graph, where, splits, pools, private)
    every_run = tuple(t for t in graph.inputs if t in shared)
    return Layout(graph, where, splits, memory, tuple(private), every_run)


def _plan_splits(
    graph: Graph,
    where: Mapping[Tensor, Choice],
    splits: Sequence[Split],
    pools: Sequence[BufferType],
    private: Sequence[Tensor],
    *,
    every_node: bool = False,
) -> MemoryMap:
    steps = timeline(graph, where, splits, pools, private, every_node=every_node)
    return plan_memory(steps, pools, keep=kept(graph, splits), placed=private)


def private_by_pool(layout: Layout) -> dict[int, list[Tensor]]:
    """The tensors for which each batch has memory, by the backend in whose memory they lie."""
    homes = {copy.target: split.backend for split in layout.splits for copy in split.copies}
    found: dict[int, list[Tensor]] = {}
    for tensor in layout.private:
        home = homes[tensor] if tensor in homes else layout.where[tensor].backend
        found.setdefault(home, []).append(tensor)
    return found


def batch_memory(
    layout: Layout, arena: Arena, *, reserve: bool = False
) -> tuple[dict[Tensor, Storage], list[Buffer]]:
    """Memory for one batch: where its tensors lie, and its buffers. Raises OutOfMemory."""
    places: dict[Tensor, Storage] = {}
    buffers: list[Buffer] = []
    try:
        for home, tensors in private_by_pool(layout).items():
            pool = arena.pools[home]
            take = partial(arena.take, pool, reserve=reserve)
            placed, made = allocate(tensors, pool, alloc=take)
            buffers.extend(made.parts)
            for tensor, with_memory in zip(tensors, placed, strict=True):
                assert with_memory.storage is not None
                places[tensor] = with_memory.storage
    except BaseException:
        arena.give(buffers)
        raise
    return places, buffers


@dataclass(slots=True)
class Batch:
    """What one batch in flight has for itself: private memory, bindings and plans."""

    places: Mapping[Tensor, Storage]
    buffers: Sequence[Buffer]
    bindings: Bindings = field(default_factory=Bindings)
    locals: list[Bindings] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    values: dict[Tensor, int] = field(default_factory=dict)
    """For each input the run from which its value here is."""
    staging: dict[Tensor, Array] = field(default_factory=dict)
    """Host memory through which copies go from device to device."""
    generation: int = -1
    pending: InFlight | None = None


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
        for program in ("_run_program", "flight_program"):
            vars(self).pop(program, None)
        try:
            self.scheduler.arena.grow(self.layout.memory.sizes)
            for _ in range(self.batches):
                self._batches.append(Batch(*batch_memory(self.layout, self.scheduler.arena)))
            self.ready(self._batches[0])
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give plans and memory back; they come anew with the next run."""
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
            raise GraphError(f"{tensor}: is no part of {self!r}")
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
        return run(self, inputs or {}, observer)

    @final
    def submit(
        self, inputs: Mapping[Tensor, Any] | None = None, *, observer: Observer | None = None
    ) -> InFlight:
        """Queue one batch and the reading of its outputs; up to `batches` are in flight at once.

        Waits for the oldest batch where all places are taken; with an `observer`, for all batches
        in flight and for each node that it looks at.
        """
        self.scheduler.check_processes()
        return submit(self, inputs or {}, observer)

    @cached_property
    def _run_program(self) -> Program:
        return run_program(self.splits, self.layout.where)

    @cached_property
    def flight_program(self) -> Program:
        """What a batch is after its inputs are uploaded, beside others in flight."""
        sharers = self.scheduler.fleet.sharers
        return flight_program(self.splits, self.layout.where, self.graph.outputs, sharers)

    def program(self, start: Restart | None = None) -> Program:
        """What a run is after its inputs are uploaded; the rest of it, behind `start`."""
        if start is None:
            return self._run_program
        skipped = start.skips(self.splits)
        kept = (self.upload(root, Value.KEPT) for root in start.values)
        rest, done = self.splits[skipped:], self.splits[:skipped]
        return (*kept, *run_program(rest, self.layout.where, skipped=done))

    def upload(self, tensor: Tensor, value: Value = Value.GIVEN) -> Upload:
        """The step that puts a value of an input into the memory of a batch."""
        return Upload(self.layout.where[tensor].backend, None, tensor, value)

    def outputs_again(self, attempt: Attempt, observer: Observer | None) -> Mapping[Tensor, Array]:
        """The outputs of a batch that was in flight when a device failed."""
        results = run(self, attempt.inputs or {}, observer, attempt.index)
        return {output: results[output] for output in self.graph.outputs}

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

    def has_value(self, tensor: Tensor, batch: Batch, index: int, *, new: bool) -> None:
        """Note that `batch` has the last value of an input, perhaps a `new` one."""
        if tensor in batch.places:
            if new:
                self.latest[tensor] = (self.scheduler.runs, index)
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
            self._unfused = _plan_splits(
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
