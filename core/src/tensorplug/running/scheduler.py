"""`Scheduler`: turns graphs into schedules for several backends."""

import logging
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import TypedDict, TypeVar, Unpack

from tensorplug.device import observing
from tensorplug.device.abilities import SupportsSizes
from tensorplug.device.backend import Backend
from tensorplug.device.buffer import BufferType
from tensorplug.device.lifetime import Resource, Turnstile
from tensorplug.device.placing import buffer_sizes
from tensorplug.errors import (
    DeviceError,
    GraphError,
    OptionError,
    RunFailed,
    RunState,
    SchedulerBusy,
    blaming,
)
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Place, Tensor
from tensorplug.planning.assign import Streams
from tensorplug.planning.planned import PlannedGraph, PlanSettings, plan_graph, private_by_pool
from tensorplug.running.arena import Arena
from tensorplug.running.batch import Lane, reserve, unallocated
from tensorplug.running.failure import Attempt
from tensorplug.running.fleet import Fleet
from tensorplug.running.limit import Limit
from tensorplug.running.lost import Lost, Restore, Source
from tensorplug.running.plans import Plans
from tensorplug.running.recovery.rescue import POLICIES, take_back
from tensorplug.running.results import InFlight
from tensorplug.running.run import around, run
from tensorplug.running.schedule import Schedule
from tensorplug.running.telling import warn_of_distant_weights
from tensorplug.running.until import until_done

T = TypeVar("T")

logger = logging.getLogger("tensorplug.running")

DEBUG = "TENSORPLUG_SCHED_DEBUG"
"""The environment variable that prints what every schedule runs where, unless it is 0."""
BATCHES = 4
"""The fewest batches in flight with `parallel=True`; with more streams, one for each."""
SURVIVED = 64
"""Failures that are remembered."""


class PlanOptions(TypedDict, total=False):
    """How a graph is planned: the keyword arguments of `Scheduler.schedule`."""

    effects: Iterable[Tensor]
    pins: Mapping[Tensor, Backend] | None
    transient: Iterable[Tensor]
    fuse: bool


class Scheduler(Resource):
    """Plans graphs over `backends`, the first having the highest priority, and owns compute memory.

    The last backend holds the inputs: its memory must be the host's. `buffer_types` replaces the
    memory in which a backend computes. With `offload` a device may take nodes whose weights lie in
    host memory if it expects to gain more than the copy costs. Runs are recorded in `trace`, by
    default in the file that TENSORPLUG_TRACE names. With `sanitize` (by default if
    TENSORPLUG_SANITIZE is 1) all queued work is checked for races, slowly: a race raises
    HazardError. If a device fails, the run raises RunFailed; with `on_failure="replan"` the run
    goes on without the device. A step that takes longer than `hang_limit` seconds raises
    DeviceHung. Work of devices that run several nodes in parallel is put into stages; with `ahead`,
    work of all devices, looking at `ahead` nodes or groups at a time. A scheduler belongs to one
    thread, and only one of its schedules runs at a time (SchedulerBusy).

    >>> x = tp.input("x", (4,), tp.F32)
    >>> y = x * 2
    >>> with tp.open("cpu") as cpu, tp.Scheduler([cpu]) as scheduler:
    ...     run = scheduler.schedule(y)
    ...     [row.device for row in run.explain().nodes]
    ['cpu:0']
    """

    def __init__(  # noqa: PLR0913 - a program names only what it wants otherwise
        self,
        backends: Sequence[Backend],
        *,
        parallel: bool = False,
        offload: bool = True,
        buffer_types: Mapping[Backend, BufferType] | None = None,
        trace: observing.Tracer | None = None,
        sanitize: bool | None = None,
        on_failure: str = "raise",
        hang_limit: float | None = None,
        ahead: int | None = None,
    ) -> None:
        _check_streams(backends)
        chosen = buffer_types or {}
        for backend in chosen:
            if backend not in backends:
                raise OptionError(f"Scheduler: buffer_types has {backend!r}, not among its streams")
        pools = [chosen.get(b, b.buffer_type) for b in backends]
        _check(backends, pools, on_failure, hang_limit, ahead)
        super().__init__()
        self.turn = Turnstile("scheduler", SchedulerBusy)
        self.runs = 0
        self.flying: list[InFlight] = []
        """Batches that were submitted and that the host has not waited for, oldest first."""
        self.failed: Attempt | None = None
        """The last run that failed because of a device."""
        self.survived: deque[RunState] = deque(maxlen=SURVIVED)
        """The last failures after which runs went on, and from where."""
        self.stopped: RunFailed | None
        """The failure after which nothing runs: a device hangs, and runs would use its memory."""
        self.limit = Limit(hang_limit)
        recovery = POLICIES[on_failure]
        self.recovery = None if recovery is None else recovery(self)
        self.replans = recovery is not None
        """True if runs go on after a device was lost: each reads its outputs before it ends."""
        self.lost = Lost()
        self.unfinished: list[InFlight] = []
        """Batches that were in flight when a device failed, oldest first, to be repeated."""
        self.trace = observing.trace_of_process() if trace is None else trace
        if self.trace is not None:
            self.trace.add(*backends)
        wanted = observing.is_sanitizing() if sanitize is None else sanitize
        self.sanitizer = observing.MAKERS.sanitizer(*backends) if wanted else None
        self._calls = around(self.limit, self.trace, self.sanitizer)
        # One for each device in a line, and one whose inputs or results the host copies.
        batches = max(BATCHES, len(backends)) if parallel else 1
        self._settings = PlanSettings(batches, offload, ahead)
        self._warned: set[BufferType] = set()
        """Memory of weights that no stream computes in."""
        self.plans = Plans()
        self.order = tuple(backend.name for backend in backends)
        """The names of all streams, lost ones too, the one of the highest priority first."""
        self.use(backends, pools)

    def _survives_fork(self) -> bool:
        return all(backend._survives_fork() for backend in self.backends)

    def check_processes(self) -> None:
        """Raise DeviceError in a forked child where a device cannot be used in it."""
        for backend in self.backends:
            if backend.lost_by_fork:
                with blaming(backend.device):
                    backend.check_process()

    def use(self, backends: Sequence[Backend], pools: Sequence[BufferType]) -> None:
        """Compute on `backends` in memory of `pools` from now on; nothing is planned yet."""
        self.stopped = None
        self.fleet = Fleet(backends, pools, self._settle, self._calls)
        self._lanes = self._new_lanes()
        self.streams = Streams(self.fleet.backends, pools, self.lost.moved)

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The streams that compute, the one of the highest priority first."""
        return self.fleet.backends

    @property
    def arena(self) -> Arena:
        """The compute memory."""
        return self.fleet.arena

    def lanes(self) -> Sequence[Lane]:
        """A lane for each batch in flight of a schedule, shared by all schedules if parallel."""
        return self._lanes or [self._new_lane()]

    def _new_lane(self) -> Lane:
        return Lane(Arena(self.fleet.arena.pools, self._settle))

    def _new_lanes(self) -> Sequence[Lane]:
        count = self._settings.batches
        return [self._new_lane() for _ in range(count)] if count > 1 else []

    # --- planning --------------------------------------------------------------------------

    def schedule(
        self,
        what: Graph | Tensor | Sequence[Tensor],
        *,
        effects: Iterable[Tensor] = (),
        pins: Mapping[Tensor, Backend] | None = None,
        transient: Iterable[Tensor] = (),
        fuse: bool = True,
    ) -> Schedule:
        """Plan a graph, or the graph of these outputs and `effects`.

        `pins` fixes the backend of tensors. `transient` inputs give up their memory once they are
        read, and must be given to every run. Devices that can fuse compute groups of nodes as one
        unless `fuse` is False or TENSORPLUG_FUSION is 0. TENSORPLUG_SCHED_DEBUG=1 prints what runs
        where, and why, to standard error. Raises Unsupported, OutOfMemory, GraphError.
        """
        self.check_processes()
        graph = _graph_of(what, effects)
        plan = self._plan_with(graph, pins=pins, transient=transient, fuse=fuse)
        with nullcontext() if self.trace is None else self.trace.span("schedule"):
            schedule = self._planned(partial(Schedule, self, graph, plan, self._settings.batches))
        if os.environ.get(DEBUG, "0") not in ("", "0"):
            print(f"scheduled {graph!r}:\n{schedule.explain()}", file=sys.stderr)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("scheduled %r:\n%s", graph, schedule.explain())
        return schedule

    def reserve(
        self, what: Graph | Tensor | Sequence[Tensor], **options: Unpack[PlanOptions]
    ) -> None:
        """Allocate all memory that a schedule of a graph needs, such as the largest graph to come.

        That is compute memory and, with `parallel=True`, memory for transient inputs and for what
        batches copy between devices, which all schedules share; and memory for the other inputs of
        one schedule, which it leaves to the next one when it is closed. Memory that plans of a
        backend allocate, and memory in which an observer looks at nodes, is not counted. Raises
        OutOfMemory, SchedulerBusy.
        """
        plan = self._plan_with(what, **options)
        self._planned(lambda: reserve(plan(), self.arena, self.lanes()))

    def sizes(
        self, what: Graph | Tensor | Sequence[Tensor], **options: Unpack[PlanOptions]
    ) -> dict[str, int]:
        """Bytes that `reserve` would allocate at first, by buffer type, without allocating.

        Devices made of several count as those of which they are made, with the memory of plans.
        """
        planned = self._planned(self._plan_with(what, **options))
        sizes, private = Counter[str](), private_by_pool(planned)
        for i, pool in enumerate(self.arena.pools):
            own = sum(buffer_sizes(private.get(i, ()), pool)) + planned.lane.pool_size(i)
            for part in pool.parts:
                sizes[part.name] += planned.memory.pool_size(i) + self._settings.batches * own
        with unallocated(planned, self.arena.pools) as parts:
            for i, backend in enumerate(self.backends):
                if isinstance(backend, SupportsSizes):
                    pairs = zip(planned.splits, parts, strict=True)
                    mine = [part for split, part in pairs if split.stream == i]
                    for kind, size in backend.plan_sizes(mine).items():
                        sizes[kind.name] += size
        return {name: size for name, size in sizes.items() if size}

    def buffer_size(self, backend: Backend) -> int:
        """Bytes allocated for `backend` now, for all schedules, counted as `reserve` counts.

        0 if an earlier backend of the scheduler computes in the same memory.
        """
        index = self._index(backend)
        pool = self.arena.pools[index]
        if pool in self.arena.pools[:index]:
            return 0
        schedules = [child for child in self.children if isinstance(child, Schedule)]
        private = [b for schedule in schedules for b in schedule.private_buffers()]
        return self.memory_size(pool) + sum(b.size for b in private if b.type is pool)

    def memory_size(self, pool: BufferType) -> int:
        """Bytes of one buffer type that all schedules share."""
        return sum(arena.size(pool) for arena in self._arenas())

    def _arenas(self) -> list[Arena]:
        return [self.arena, *(lane.arena for lane in self._lanes)]

    def synchronize(self) -> None:
        """Wait for all queued work of all backends. Raises RunFailed, SchedulerBusy."""
        with self.turn:
            self._settle()

    def _settle(self) -> None:
        attempt = Attempt(self)
        with attempt:
            self.wait(attempt)

    def wait(self, attempt: Attempt) -> None:
        """Wait for all queued work as a part of `attempt`; the caller has the turn."""
        run(self.fleet.settling, self.fleet, attempt.context, self.fleet.calls)
        self.fleet.loose = False
        if self.trace is not None:
            self.trace.collect(*self.backends)

    # --- when a device fails ---------------------------------------------------------------

    def add_sources(self, sources: Mapping[Tensor, Source]) -> None:
        """Register functions that return the bytes of constant tensors, for on_failure="replan"."""
        self.lost.sources.update(sources)

    def add_states(
        self, states: Iterable[Tensor], restore: Restore, *, repeats: bool = False
    ) -> None:
        """Register tensors that graphs write, and a function that restores them after a failed run.

        Tensors of a lost device are zero in memory of another one when `restore` is called. It may
        run schedules of this scheduler; all that these write must be named. Where another device
        fails in it, it is called again. Batches in flight raise RunFailed, unless `repeats` says
        that they can run again, in their order, on what `restore` gives: what they write is then
        there already, or is not read before. For on_failure="replan".
        """
        self.lost.states.update(dict.fromkeys(states, restore))
        if repeats:
            self.lost.repeats.add(restore)

    def take_back(self, backend: Backend) -> None:
        """Compute on `backend` too, a stream of a device that takes the place of a lost one.

        It has the name of the lost stream. Tensors that lay on the lost device lie on this one
        again: constants are read from their sources, states copied from where they are. Schedules
        are planned again when they run. Raises OptionError, OutOfMemory, RunFailed, SchedulerBusy.
        """
        with self.turn:
            self._settle()
            take_back(backend, self)

    def place_of(self, tensor: Tensor) -> Place:
        """The place of a persistent tensor now: its own, or that to which it was moved."""
        return self.lost.place_of(tensor)

    def note_failure(self, attempt: Attempt, failure: RunFailed) -> None:
        """Make outputs that `attempt` or a batch in flight did not complete raise `failure`."""
        self.failed = attempt
        if self.limit.stuck:
            self.stopped = failure
            self.forget_memory()
        disturbed = attempt.disturbed
        for flight in tuple(self.flying):
            if not flight.settle(failure, disturbed):
                if self.replans:
                    self.unfinished.append(flight)
                # Later batches may have read what this one did not finish.
                disturbed = {backend.device for backend in self.backends}

    def forget_memory(self) -> None:
        """Drop all memory that a hung stream may still use; it is freed when its call returns."""
        schedules = [child for child in self.children if isinstance(child, Schedule)]
        used = [self._arenas(), self.plans, self.backends, self.lost.forget()]
        outputs = [flight.forget() for flight in self.flying]
        self.limit.hold([*used, *outputs, *(schedule.forget() for schedule in schedules)])
        self.plans = Plans()
        self.fleet.forget_memory()
        self._lanes = self._new_lanes()

    def release(self) -> None:
        """Release plans and compute memory; the next run allocates them again.

        Raises SchedulerBusy.
        """
        with self.turn:
            self.give_back()

    def give_back(self) -> None:
        """`release()` for a caller that has the turn, or that closes the scheduler."""
        # Also if one of the functions raises, the others are called.
        with ExitStack() as stack:
            for arena in self._arenas():
                stack.callback(arena.release)
            stack.callback(self.plans.release)
            for child in self.children:
                if isinstance(child, Schedule):
                    stack.callback(child.release)

    # --- planning, in steps ----------------------------------------------------------------

    def _plan_with(
        self,
        what: Graph | Tensor | Sequence[Tensor],
        *,
        effects: Iterable[Tensor] = (),
        pins: Mapping[Tensor, Backend] | None = None,
        transient: Iterable[Tensor] = (),
        fuse: bool = True,
    ) -> Callable[..., PlannedGraph]:
        """A function that plans the graph for the devices of the scheduler when it is called."""
        graph, shared = _graph_of(what, effects), tuple(transient)
        for tensor in pins or ():
            if not isinstance(tensor, Tensor):
                raise OptionError(f"Scheduler: pins has {tensor!r}; its keys are tensors")
        for tensor in shared:
            if tensor not in graph.inputs:
                raise OptionError(f"Scheduler: transient has {tensor}, not an input of {graph!r}")
        return partial(self._plan, graph, pins or {}, shared, fuse=fuse)

    def _plan(
        self,
        graph: Graph,
        pins: Mapping[Tensor, Backend],
        transient: Iterable[Tensor],
        *,
        fuse: bool,
        cut: Tensor | None = None,
    ) -> PlannedGraph:
        self.check_processes()
        self.check_open()
        if self.stopped is not None:
            raise self.stopped
        self.lost.check(graph)
        now = ((t, self.lost.successor(b)) for t, b in pins.items())
        fixed = {t: self._index(b) for t, b in now if b is not None}
        planned = plan_graph(
            graph, self.streams, fixed, transient, self._settings, fuse=fuse, cut=cut
        )
        warn_of_distant_weights(planned.splits, self.streams, self._warned)
        return planned

    def _planned(self, make: Callable[[], T]) -> T:
        """Return what `make` returns; with on_failure="replan", planning goes on after a loss."""
        if self.replans:
            return until_done(Attempt(self, kinds=(DeviceError,)), lambda _: make())
        with self.turn:
            return make()

    def _index(self, backend: Backend) -> int:
        if backend not in self.backends:
            raise GraphError(f"{backend!r}: is not a backend of this scheduler")
        return self.backends.index(backend)

    def _close(self) -> None:
        for backend in self.backends:
            if not backend.closed and self.stopped is None:
                # A device may still read memory of another device that does not know it.
                backend.drain()
        if self.trace is not None:
            self.trace.collect(*self.backends)
        self.give_back()
        self.lost.release()
        self.limit.close()
        # Errors refer to frames, and frames to memory that a hung stream still has.
        self.failed = self.stopped = None
        if self.sanitizer is not None:
            self.sanitizer.close()

    def __repr__(self) -> str:
        names = ", ".join(b.name for b in self.backends)
        return f"<Scheduler {names}{', closed' if self.closed else ''}>"


def _graph_of(what: Graph | Tensor | Sequence[Tensor], effects: Iterable[Tensor]) -> Graph:
    """The graph to plan. Raises OptionError for the effects of a finished graph."""
    if not isinstance(what, Graph):
        return Graph(what, effects=effects)
    if tuple(effects):
        raise OptionError(f"Scheduler: {what!r} has its effects; give them to Graph(...) instead")
    return what


def _check_streams(backends: object) -> None:
    """Raise OptionError unless `backends` is a sequence of streams."""
    if not isinstance(backends, Sequence) or isinstance(backends, str):
        raise OptionError(
            f"Scheduler: backends={backends!r}; give a list of streams: [tensorplug.open('cpu')]"
        )
    for backend in backends:
        if not isinstance(backend, Backend):
            raise OptionError(
                f"Scheduler: {backend!r} is not a stream; open one, such as tensorplug.open('cpu')"
            )


def _check(
    backends: Sequence[Backend],
    pools: Sequence[BufferType],
    on_failure: str,
    hang_limit: float | None,
    ahead: int | None,
) -> None:
    """Raise OptionError for arguments of a scheduler that do not fit."""
    if not backends:
        raise OptionError("Scheduler: no backends given; open one, such as tensorplug.open('cpu')")
    if len(set(backends)) != len(backends):
        raise OptionError("Scheduler: a backend is given twice; open one stream for each place")
    if hang_limit is not None and not (isinstance(hang_limit, int | float) and hang_limit > 0):
        raise OptionError(f"Scheduler: hang_limit={hang_limit!r}; give seconds, or None for none")
    if ahead is not None and ahead < 0:
        raise OptionError(f"Scheduler: ahead={ahead}; give 0 or more, or None to ask devices")
    if on_failure not in POLICIES:
        raise OptionError(
            f"Scheduler: on_failure={on_failure!r}; choose from {', '.join(POLICIES)}"
        )
    for backend, pool in zip(backends, pools, strict=True):
        backend.check_open()
        if not backend.device.supports_buffer_type(pool):
            raise OptionError(f"Scheduler: {backend.name} cannot compute in {pool.name} memory")
    if len(backends) > 1 and not pools[-1].is_host:
        raise OptionError(
            f"Scheduler: the last backend, {backends[-1].name}, computes in {pools[-1].name}, "
            "which the host cannot read; end the list with a backend such as cpu"
        )
