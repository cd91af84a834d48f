"""`Scheduler`: turns graphs into schedules for several backends."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence

from tensorplug.backend import Backend, Plan, SupportsOptimize
from tensorplug.buffer import BufferType
from tensorplug.errors import GraphError, OptionError, SchedulerBusy
from tensorplug.fusion import FUSION
from tensorplug.graph import BoundGraph, Graph
from tensorplug.hazards import SANITIZE, Sanitizer
from tensorplug.lifetime import Resource, Turnstile
from tensorplug.marks import Mark
from tensorplug.scheduler.arena import Arena
from tensorplug.scheduler.assign import Field, assign
from tensorplug.scheduler.execute import span
from tensorplug.scheduler.fuse import fused
from tensorplug.scheduler.schedule import Layout, Schedule, lay_out
from tensorplug.scheduler.split import split
from tensorplug.tensor import Tensor
from tensorplug.trace import Trace, of_process

logger = logging.getLogger("tensorplug.scheduler")

BATCHES = 4
"""Batches in flight with `parallel=True`."""
KEPT_PLANS = 32
"""Plans of closed schedules that wait for a graph of the same structure."""


class Scheduler(Resource):
    """Plans graphs over `backends`, the first having the highest priority, and owns compute memory.

    The last backend holds the inputs: its memory must be the host's. `buffer_types` replaces the
    memory in which a backend computes. With `offload` a device may take work whose weights lie in
    host memory when it finds that worth the copy. What runs is recorded in `trace`, by default in
    the file that TENSORPLUG_TRACE names. With `sanitize` (by default where TENSORPLUG_SANITIZE is
    1) all that is queued is checked, slowly: accesses to the same bytes that nothing orders raise
    HazardError. Belongs to one thread; its schedules never run at once (SchedulerBusy).
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        *,
        parallel: bool = False,
        offload: bool = True,
        buffer_types: Mapping[Backend, BufferType] | None = None,
        trace: Trace | None = None,
        sanitize: bool | None = None,
    ) -> None:
        if not backends:
            raise OptionError(
                "Scheduler: no backends given; open one, such as tensorplug.open('cpu')"
            )
        if len(set(backends)) != len(backends):
            raise OptionError("Scheduler: a backend is given twice; open one stream for each place")
        super().__init__()
        chosen = buffer_types or {}
        pools = [chosen.get(b, b.buffer_type) for b in backends]
        for backend, pool in zip(backends, pools, strict=True):
            backend.check_open()
            if not backend.device.supports_buffer_type(pool):
                raise OptionError(f"Scheduler: {backend.name} cannot compute in {pool.name} memory")
        if len(backends) > 1 and not pools[-1].is_host:
            raise OptionError(
                f"Scheduler: the last backend, {backends[-1].name}, computes in {pools[-1].name}, "
                "which the host cannot read; end the list with a backend such as cpu"
            )
        self.backends = tuple(backends)
        self.field = Field(self.backends, pools)
        self.arena = Arena(pools, self.synchronize)
        self.turn = Turnstile("scheduler", SchedulerBusy)
        self.runs = 0
        self.sharers = tuple(
            tuple(i for i, other in enumerate(pools) if other is pool) for pool in pools
        )
        """For each stream the indices of all that compute in the same memory, its own too."""
        self.readers: dict[int, dict[Backend, Mark]] = {}
        """What a stream waits for before it overwrites its memory: other streams that read it."""
        self.users: dict[BufferType, Mark] = {}
        """Who computed last in memory that several streams share."""
        self.loose = False
        """Whether the last run was not submitted: it holds nobody back, so all is waited for."""
        self.trace = of_process() if trace is None else trace
        if self.trace is not None:
            self.trace.add(*backends)
        wanted = os.environ.get(SANITIZE) == "1" if sanitize is None else sanitize
        self.sanitizer = Sanitizer(*backends) if wanted else None
        self._parallel = parallel
        self._offload = offload
        self._plans: dict[tuple[int, tuple[object, ...]], list[Plan]] = {}

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
        read, and must be given to every run. Devices that can do so compute groups of nodes as one
        unless `fuse` is False or TENSORPLUG_FUSION is 0. Raises Unsupported, OutOfMemory,
        GraphError.
        """
        with self.turn, span(self, "schedule"):
            layout = self._lay_out(what, effects, pins, transient, fuse=fuse)
            schedule = Schedule(self, layout, BATCHES if self._parallel else 1)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("scheduled %r:\n%s", layout.graph, schedule.explain())
        return schedule

    def reserve(
        self,
        what: Graph | Tensor | Sequence[Tensor],
        *,
        effects: Iterable[Tensor] = (),
        pins: Mapping[Tensor, Backend] | None = None,
    ) -> None:
        """Grow the compute memory for a graph, the largest one to come. Raises OutOfMemory."""
        with self.turn:
            self.arena.grow(self._lay_out(what, effects, pins, ()).memory.sizes)

    def sizes(
        self,
        what: Graph | Tensor | Sequence[Tensor],
        *,
        effects: Iterable[Tensor] = (),
        pins: Mapping[Tensor, Backend] | None = None,
    ) -> dict[str, int]:
        """Bytes of compute memory that a graph needs, by buffer type, without allocating."""
        memory = self._lay_out(what, effects, pins, ()).memory
        return {
            pool.name: memory.pool_size(i)
            for i, pool in enumerate(self.arena.pools)
            if memory.sizes[i]
        }

    def buffer_size(self, backend: Backend) -> int:
        """Bytes of compute memory allocated for `backend`; 0 where an earlier one shares it."""
        index = self._index(backend)
        pool = self.arena.pools[index]
        return 0 if pool in self.arena.pools[:index] else self.arena.size(pool)

    def synchronize(self) -> None:
        """Wait for all queued work of all backends."""
        with span(self, "wait"):
            for backend in self.backends:
                backend.synchronize()
        self.loose = False
        if self.trace is not None:
            self.trace.collect()

    def take_plan(self, backend: int, bound: BoundGraph) -> Plan:
        """A plan for `bound`: one of the same structure, bound anew, or a new one."""
        waiting = self._plans.get((backend, bound.graph.key))
        if not waiting:
            return self.backends[backend].plan(bound)
        plan = waiting.pop()
        plan.rebind(bound)
        return plan

    def give_plan(self, backend: int, plan: Plan) -> None:
        """Keep a plan for a later graph of the same structure."""
        if plan.closed:
            return
        if self.closed or sum(map(len, self._plans.values())) >= KEPT_PLANS:
            plan.close()
            return
        self._plans.setdefault((backend, plan.bound.graph.key), []).append(plan)

    def _lay_out(
        self,
        what: Graph | Tensor | Sequence[Tensor],
        effects: Iterable[Tensor],
        pins: Mapping[Tensor, Backend] | None,
        transient: Iterable[Tensor],
        *,
        fuse: bool = True,
    ) -> Layout:
        self.check_open()
        graph = what if isinstance(what, Graph) else Graph(what, effects=effects)
        self.field.forget()
        fixed = {t: self._index(b) for t, b in (pins or {}).items()}
        where = assign(graph, self.field, fixed, offload=self._offload)
        parts = split(graph, where, self.field, self._optimize)
        if fuse and os.environ.get(FUSION, "1") != "0":
            parts = fused(graph, parts, self.field)
        batches = BATCHES if self._parallel else 1
        return lay_out(graph, where, parts, self.arena.pools, transient=transient, batches=batches)

    def _optimize(self, backend: int, nodes: Sequence[Tensor]) -> Sequence[Tensor]:
        stream = self.backends[backend]
        return stream.optimize(nodes) if isinstance(stream, SupportsOptimize) else nodes

    def _index(self, backend: Backend) -> int:
        if backend not in self.backends:
            raise GraphError(f"{backend!r}: is no backend of this scheduler")
        return self.backends.index(backend)

    def _close(self) -> None:
        for backend in self.backends:
            if not backend.closed:
                # One device may still read what lies on another, which does not know of it.
                backend.drain()
        if self.trace is not None:
            self.trace.collect()
        for plans in self._plans.values():
            for plan in plans:
                plan.close()
        self._plans.clear()
        self.arena.close()
        if self.sanitizer is not None:
            self.sanitizer.close()

    def __repr__(self) -> str:
        names = ", ".join(b.name for b in self.backends)
        return f"<Scheduler {names}{', closed' if self.closed else ''}>"
