"""`Scheduler`: turns graphs into schedules for several backends."""

import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypedDict, TypeVar, Unpack

from tensorplug.device import observing
from tensorplug.device.abilities import SupportsSizes
from tensorplug.device.backend import Backend
from tensorplug.device.buffer import BufferType
from tensorplug.device.lifetime import Resource
from tensorplug.device.placing import buffer_sizes
from tensorplug.errors import DeviceError, OptionError, RunState
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Place, Tensor
from tensorplug.planning.planned import PlanRequest, PlanSettings, private_by_pool
from tensorplug.running.batch import reserve, unallocated
from tensorplug.running.failure import Attempt
from tensorplug.running.limit import Limit
from tensorplug.running.lost import Restore, Source
from tensorplug.running.recovery.rescue import POLICIES, take_back
from tensorplug.running.runs import Runs
from tensorplug.running.schedule import Schedule
from tensorplug.running.until import until_done

T = TypeVar("T")
Outputs = Graph | Tensor | Sequence[Tensor]
"""What to compute: a graph, or the outputs of one."""

logger = logging.getLogger("tensorplug.running")

DEBUG = "TENSORPLUG_SCHED_DEBUG"
"""The environment variable that prints what every schedule runs where, unless it is 0."""
BATCHES = 4
"""The fewest batches in flight with `parallel=True`; with more streams, one for each."""


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
        shown = observing.trace_of_process() if trace is None else trace
        wanted = observing.is_sanitizing() if sanitize is None else sanitize
        # One for each device in a line, and one whose inputs or results the host copies.
        batches = max(BATCHES, len(backends)) if parallel else 1
        sanitizer = observing.MAKERS.sanitizer() if wanted else None
        settings = PlanSettings(batches, offload, ahead)
        self._runs = Runs(self, settings, Limit(hang_limit), shown, sanitizer)
        self._runs.observe(*backends)
        self._runs.use(backends, pools)
        recovery = POLICIES[on_failure]
        self._runs.recovery = None if recovery is None else recovery(self._runs)

    def _survives_fork(self) -> bool:
        return all(backend._survives_fork() for backend in self.backends)

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The streams that compute, the one of the highest priority first."""
        return self._runs.fleet.backends

    @property
    def survived(self) -> Sequence[RunState]:
        """The last failures after which runs went on, and from where."""
        recovery = self._runs.recovery
        return () if recovery is None else tuple(recovery.survived)

    # --- planning --------------------------------------------------------------------------

    def schedule(
        self,
        what: Outputs,
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
        self._runs.check_processes()
        request = _request(what, effects=effects, pins=pins, transient=transient, fuse=fuse)
        trace = self._runs.trace
        with nullcontext() if trace is None else trace.span("schedule"):
            schedule = self._planned(lambda: Schedule(self._runs, request))
        if os.environ.get(DEBUG, "0") not in ("", "0"):
            print(f"scheduled {request.graph!r}:\n{schedule.explain()}", file=sys.stderr)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("scheduled %r:\n%s", request.graph, schedule.explain())
        return schedule

    def reserve(self, what: Outputs, **options: Unpack[PlanOptions]) -> None:
        """Allocate all memory that a schedule of a graph needs, such as the largest graph to come.

        That is compute memory and, with `parallel=True`, memory for transient inputs and for what
        batches copy between devices, which all schedules share; and memory for the other inputs of
        one schedule, which it leaves to the next one when it is closed. Memory that plans of a
        backend allocate, and memory in which an observer looks at nodes, is not counted. Raises
        OutOfMemory, SchedulerBusy.
        """
        runs, request = self._runs, _request(what, **options)
        self._planned(lambda: reserve(runs.plan(request), runs.fleet.arena, runs.lanes()))

    def sizes(self, what: Outputs, **options: Unpack[PlanOptions]) -> dict[str, int]:
        """Bytes that `reserve` would allocate at first, by buffer type, without allocating.

        Devices made of several count as those of which they are made, with the memory of plans.
        """
        runs, request = self._runs, _request(what, **options)
        planned = self._planned(lambda: runs.plan(request))
        sizes, private = Counter[str](), private_by_pool(planned)
        pools, batches = runs.fleet.arena.pools, runs.settings.batches
        for i, pool in enumerate(pools):
            own = sum(buffer_sizes(private.get(i, ()), pool)) + planned.lane.pool_size(i)
            for part in pool.parts:
                sizes[part.name] += planned.memory.pool_size(i) + batches * own
        with unallocated(planned, pools) as parts:
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
        index, pools = self._runs.index(backend), self._runs.fleet.arena.pools
        pool = pools[index]
        if pool in pools[:index]:
            return 0
        private = [b for schedule in self._runs.schedules for b in schedule.private_buffers()]
        return self._runs.memory_size(pool) + sum(b.size for b in private if b.type is pool)

    def synchronize(self) -> None:
        """Wait for all queued work of all backends. Raises RunFailed, SchedulerBusy."""
        with self._runs.turn:
            self._runs.settle()

    # --- when a device fails ---------------------------------------------------------------

    def add_sources(self, sources: Mapping[Tensor, Source]) -> None:
        """Register functions that return the bytes of constant tensors, for on_failure="replan"."""
        self._runs.lost.sources.update(sources)

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
        self._runs.lost.states.update(dict.fromkeys(states, restore))
        if repeats:
            self._runs.lost.repeats.add(restore)

    def take_back(self, backend: Backend) -> None:
        """Compute on `backend` too, a stream of a device that takes the place of a lost one.

        It has the name of the lost stream. Tensors that lay on the lost device lie on this one
        again: constants are read from their sources, states copied from where they are. Schedules
        are planned again when they run. Raises OptionError, OutOfMemory, RunFailed, SchedulerBusy.
        """
        with self._runs.turn:
            self._runs.settle()
            take_back(backend, self._runs)

    def place_of(self, tensor: Tensor) -> Place:
        """The place of a persistent tensor now: its own, or that to which it was moved."""
        return self._runs.lost.place_of(tensor)

    def release(self) -> None:
        """Release plans and compute memory; the next run allocates them again.

        Raises SchedulerBusy.
        """
        with self._runs.turn:
            self._runs.release()

    def _planned(self, make: Callable[[], T]) -> T:
        """Return what `make` returns; with on_failure="replan", planning goes on after a loss."""
        if self._runs.recovery is not None:
            return until_done(Attempt(self._runs, kinds=(DeviceError,)), lambda _: make())
        with self._runs.turn:
            return make()

    def _apart(self) -> AbstractContextManager[None]:
        return self._runs.turn.closing()

    def _close(self) -> None:
        self._runs.close()

    def __repr__(self) -> str:
        names = ", ".join(b.name for b in self.backends)
        return f"<Scheduler {names}{', closed' if self.closed else ''}>"


def _request(
    what: Outputs,
    *,
    effects: Iterable[Tensor] = (),
    pins: Mapping[Tensor, Backend] | None = None,
    transient: Iterable[Tensor] = (),
    fuse: bool = True,
) -> PlanRequest:
    """What to plan. Raises OptionError for options that do not fit."""
    graph = what if isinstance(what, Graph) else Graph(what, effects=effects)
    shared = tuple(transient)
    if graph is what and tuple(effects):
        raise OptionError(f"Scheduler: {what!r} has its effects; give them to Graph(...) instead")
    for tensor in pins or ():
        if not isinstance(tensor, Tensor):
            raise OptionError(f"Scheduler: pins has {tensor!r}; its keys are tensors")
    for tensor in shared:
        if tensor not in graph.inputs:
            raise OptionError(f"Scheduler: transient has {tensor}, not an input of {graph!r}")
    return PlanRequest(graph, pins or {}, shared, fuse)


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
