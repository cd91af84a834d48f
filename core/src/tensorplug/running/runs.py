"""`Runs`: the runs of a scheduler, and the streams, memory and plans that they share."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tensorplug.device.backend import Backend
from tensorplug.device.buffer import BufferType
from tensorplug.device.lifetime import Resource, Turnstile
from tensorplug.device.observing import RaceDetector, Tracer
from tensorplug.errors import GraphError, RunFailed, SchedulerBusy, blaming
from tensorplug.graph.tensor import Tensor
from tensorplug.planning.assign import Streams, is_weight
from tensorplug.planning.planned import PlannedGraph, PlanRequest, PlanSettings, plan_graph
from tensorplug.planning.split import Split
from tensorplug.running.arena import Arena
from tensorplug.running.batch import Lane
from tensorplug.running.failure import Attempt
from tensorplug.running.fleet import Fleet
from tensorplug.running.limit import Limit
from tensorplug.running.lost import Lost
from tensorplug.running.plans import Plans
from tensorplug.running.run import around, run
from tensorplug.running.schedule import Schedule
from tensorplug.text import human

if TYPE_CHECKING:
    from tensorplug.running.recovery.rescue import Recovery
    from tensorplug.running.results import InFlight

logger = logging.getLogger("tensorplug.running")


@dataclass(eq=False, repr=False)
class Runs:
    """The runs of all schedules of `scheduler`: which are in flight, and which one failed.

    Except for `check_processes` and `lanes`, the caller of a method has the turn.
    """

    scheduler: Resource
    settings: PlanSettings
    limit: Limit
    trace: Tracer | None
    sanitizer: RaceDetector | None
    turn: Turnstile = field(default_factory=partial(Turnstile, "scheduler", SchedulerBusy))
    count: int = 0
    """How many runs began."""
    flying: "list[InFlight]" = field(default_factory=list)
    """Batches that were submitted and that the host has not waited for, oldest first."""
    failed: Attempt | None = None
    """The last run that failed because of a device."""
    stopped: RunFailed | None = None
    """The failure after which nothing runs: a device hangs, and runs would use its memory."""
    recovery: "Recovery | None" = None
    """Continues runs after a device was lost; each then reads its outputs before it ends."""
    lost: Lost = field(default_factory=Lost)
    plans: Plans = field(default_factory=Plans)
    fleet: Fleet = field(init=False)
    streams: Streams = field(init=False)
    """The streams of the fleet as planning sees them."""
    _lanes: Sequence[Lane] = ()
    _warned: set[BufferType] = field(default_factory=set)
    """Memory of weights that no stream computes in."""

    def observe(self, *backends: Backend) -> None:
        """Let the trace and the sanitizer observe more streams."""
        for observer in (self.trace, self.sanitizer):
            if observer is not None:
                observer.add(*backends)

    def use(self, backends: Sequence[Backend], pools: Sequence[BufferType]) -> None:
        """Compute on `backends` in memory of `pools` from now on; nothing is planned yet."""
        self.stopped = None
        calls = around(self.limit, self.trace, self.sanitizer)
        self.fleet, self._lanes = Fleet(backends, pools, self.settle, calls), ()
        self.streams = Streams(self.fleet.backends, pools, self.lost.moved)

    def check_processes(self) -> None:
        """Raise DeviceError in a forked child where a device cannot be used in it."""
        for backend in self.fleet.backends:
            if backend.lost_by_fork:
                with blaming(backend.device):
                    backend.check_process()

    def plan(self, request: PlanRequest, cut: Tensor | None = None) -> PlannedGraph:
        """Plan a graph for the present devices; a split starts at the node `cut`, if given."""
        self.check_processes()
        self.scheduler.check_open()
        if self.stopped is not None:
            raise self.stopped
        self.lost.check(request.graph)
        now = ((t, self.lost.successor(b)) for t, b in request.pins.items())
        fixed = {t: self.index(b) for t, b in now if b is not None}
        planned = plan_graph(request, self.streams, fixed, self.settings, cut)
        self._warn_of_distant_weights(planned.splits)
        return planned

    def _warn_of_distant_weights(self, splits: Sequence[Split]) -> None:
        """Warn, once for each kind of memory, of weights in memory that no stream computes in.

        They are copied to another device in every run.
        """
        for split, copy in ((s, copy) for s in splits for copy in s.copies):
            kind = self.streams.distant_type(copy.source) if is_weight(copy.source) else None
            if kind is None or kind in self._warned:
                continue
            self._warned.add(kind)
            logger.warning(
                "weights %s lie in %s, where no stream of this scheduler computes: %s are copied "
                "to %s in each run; give the scheduler a stream of %s",
                copy.source.label,
                kind.name,
                human(copy.source.nbytes),
                self.streams.backends[split.stream].name,
                kind.device.name,
            )

    def index(self, backend: Backend) -> int:
        """The number of a stream. Raises GraphError."""
        if backend not in self.fleet.backends:
            raise GraphError(f"{backend!r}: is not a backend of this scheduler")
        return self.fleet.backends.index(backend)

    def settle(self) -> None:
        """Wait for all queued work. Raises RunFailed."""
        attempt = Attempt(self)
        with attempt:
            self.wait(attempt)

    def wait(self, attempt: Attempt) -> None:
        """Wait for all queued work as a part of `attempt`."""
        run(self.fleet.settling, self.fleet, attempt.context, self.fleet.calls)
        self.fleet.loose = False
        if self.trace is not None:
            self.trace.collect(*self.fleet.backends)

    def note_failure(self, attempt: Attempt, failure: RunFailed) -> None:
        """Make outputs that `attempt` or a batch in flight did not complete raise `failure`."""
        self.failed = attempt
        if self.limit.stuck:
            self.stopped = failure
            self.forget_memory()
        disturbed = attempt.disturbed
        for flight in tuple(self.flying):
            if not flight.settle(failure, disturbed):
                if self.recovery is not None:
                    self.recovery.unfinished.append(flight)
                # Later batches may have read what this one did not finish.
                disturbed = {backend.device for backend in self.fleet.backends}

    # --- memory ----------------------------------------------------------------------------

    def lanes(self) -> Sequence[Lane]:
        """A lane for each batch in flight of a schedule, shared by all schedules if parallel."""
        count, pools = self.settings.batches, self.fleet.arena.pools
        lanes = self._lanes or [Lane(Arena(pools, self.settle)) for _ in range(count)]
        self._lanes = lanes if count > 1 else ()
        return lanes

    def _arenas(self) -> list[Arena]:
        return [self.fleet.arena, *(lane.arena for lane in self._lanes)]

    def memory_size(self, pool: BufferType) -> int:
        """Bytes of one buffer type that all schedules share."""
        return sum(arena.size(pool) for arena in self._arenas())

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules that are open."""
        return [child for child in self.scheduler.children if isinstance(child, Schedule)]

    def forget_memory(self) -> None:
        """Drop all memory that a hung stream may still use; it is freed when its call returns."""
        used = [self._arenas(), self.plans, self.fleet.backends, self.lost.forget()]
        outputs = [flight.forget() for flight in self.flying]
        self.limit.hold([*used, *outputs, *(schedule.forget() for schedule in self.schedules)])
        self.plans = Plans()
        self.fleet.forget_memory()
        self._lanes = ()

    def release(self) -> None:
        """Release plans and compute memory; the next run allocates them again."""
        # Also if one of the functions raises, the others are called.
        with ExitStack() as stack:
            for arena in self._arenas():
                stack.callback(arena.release)
            stack.callback(self.plans.release)
            for schedule in self.schedules:
                stack.callback(schedule.release)

    def close(self) -> None:
        """Wait for all queued work, and release all memory."""
        for backend in self.fleet.backends:
            if not backend.closed and self.stopped is None:
                # A device may still read memory of another device that does not know it.
                backend.drain()
        if self.trace is not None:
            self.trace.collect(*self.fleet.backends)
        self.release()
        self.lost.release()
        self.limit.close()
        # Errors refer to frames, and frames to memory that a hung stream still has.
        self.failed = self.stopped = None
        if self.sanitizer is not None:
            self.sanitizer.close()
