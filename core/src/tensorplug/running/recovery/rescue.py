"""What a scheduler does when a device fails: raise, or plan anew on the devices that are left."""

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tensorplug.device.backend import Backend
from tensorplug.device.buffer import MultiBuffer, as_bytes
from tensorplug.device.device import Device
from tensorplug.device.placing import allocate, host_data
from tensorplug.errors import (
    DeviceError,
    DeviceLost,
    GraphError,
    OptionError,
    OutOfMemory,
    RunFailed,
    TensorplugError,
)
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Array, Place, Tensor
from tensorplug.ops.table import OPS
from tensorplug.running.failure import Attempt, hopeless, persistent, written
from tensorplug.running.recovery.restart import NotFromHere, Restart, boundaries, with_values
from tensorplug.running.results import read_now

if TYPE_CHECKING:
    from tensorplug.running.batch import Batch
    from tensorplug.running.results import InFlight
    from tensorplug.running.schedule import Schedule
    from tensorplug.running.scheduler import Scheduler

Source = Callable[[], Any]
"""Gives the stored bytes of a tensor that never changes, as an array."""
Restore = Callable[[], None]
"""Makes states what they were before the run that failed; may run schedules."""
T = TypeVar("T")

logger = logging.getLogger("tensorplug.running")

OVERWRITES = {"cpy": "target", "set_rows": "table"}
"""Ops that write into a source without reading it: done twice they leave what they leave once."""


class Raise:
    """The policy "raise": the error says all there is to know; the next run starts afresh."""

    owes = False
    """Whether states must be restored before anything runs."""

    def __init__(self, scheduler: "Scheduler") -> None:
        self.scheduler = scheduler
        self.moved: dict[Tensor, Place] = {}
        """Where persistent tensors lie now whose device was lost."""
        self.sources: dict[Tensor, Source] = {}
        self.states: dict[Tensor, Restore] = {}

    def take(self, inputs: Mapping[Tensor, Any]) -> Mapping[Tensor, Any]:
        """The inputs that are given to a run, as its first attempt and later ones read them."""
        return inputs

    def keep(
        self, attempt: Attempt, batch: "Batch", inputs: Mapping[Tensor, Any]
    ) -> Mapping[Tensor, Any]:
        """What is to be uploaded, of the inputs that were taken."""
        return inputs

    def finish(self, attempt: Attempt, schedule: "Schedule") -> Mapping[Tensor, Array] | None:
        """Outputs of a run that is queued, where they are read at once."""
        return None

    def plan(self, make: Callable[[], T]) -> T:
        """Make a schedule."""
        return make()

    def unfinished(self, flight: "InFlight") -> None:
        """Note a batch that was in flight when a device failed, the oldest first."""

    def recover(self, failure: RunFailed, mine: Attempt | None = None) -> Restart | None:
        """Make the next attempt possible, or raise `failure`.

        Returns from where `mine` goes on; None: from its inputs.
        """
        raise failure

    def restore(self) -> None:
        """Bring states back; nobody has the turn of the scheduler meanwhile."""

    def move(self, graph: Graph) -> None:
        """Bring what `graph` reads away from lost devices."""

    def without_lost(self, pins: Mapping[Tensor, Backend]) -> Mapping[Tensor, Backend]:
        """`pins` to backends that are left."""
        return pins

    def forget(self) -> object:
        """Let go of the memory of tensors that were moved, without closing it, and return it."""
        return None

    def close(self) -> None:
        """Give back the memory of tensors that were moved."""


class Replan(Raise):
    """The policy "replan": a device that failed is left out, and the run goes on without it.

    It goes on from the last boundary of its splits from which it can, else from its inputs.

    Each run waits for its end, and its outputs are read then, so that no failure comes later.
    """

    def __init__(self, scheduler: "Scheduler") -> None:
        super().__init__(scheduler)
        self._lost: set[Device] = set()
        self._spoilt: set[Tensor] = set()
        """What a hung device may still write, wherever it lies."""
        self._gone: list[Backend] = []
        self._owed: dict[Restore, None] = {}
        self._restoring = False
        self._unfinished: list[InFlight] = []
        self._buffers: list[MultiBuffer] = []

    @property
    def owes(self) -> bool:  # type: ignore[override]  # decided anew at each run
        return bool(self._owed)

    def take(self, inputs: Mapping[Tensor, Any]) -> Mapping[Tensor, Any]:
        # Copies: a restore that runs before a later attempt may write the caller's arrays.
        return {t: host_data(t, data).copy() for t, data in inputs.items()}

    def keep(
        self, attempt: Attempt, batch: "Batch", inputs: Mapping[Tensor, Any]
    ) -> Mapping[Tensor, Any]:
        schedule = attempt.schedule
        assert schedule is not None
        attempt.inputs = {**schedule.kept, **inputs}
        # What the graph makes of an input is not what was given.
        schedule.kept = {t: v for t, v in attempt.inputs.items() if t not in schedule.changed}
        return {
            t: v
            for t, v in attempt.inputs.items()
            if t in inputs or not schedule.is_latest(t, batch)
        }

    def finish(self, attempt: Attempt, schedule: "Schedule") -> Mapping[Tensor, Array] | None:
        return read_now(attempt, schedule, schedule.graph.outputs)

    def unfinished(self, flight: "InFlight") -> None:
        self._unfinished.append(flight)

    def plan(self, make: Callable[[], T]) -> T:
        while True:
            try:
                with Attempt(self.scheduler, kinds=(DeviceError,)):
                    return make()
            except RunFailed as failure:
                self.recover(failure)

    def recover(self, failure: RunFailed, mine: Attempt | None = None) -> Restart | None:
        if self._restoring:
            # Restoring begins anew, from the run for which it is done.
            raise failure
        with self.scheduler.turn:
            flights, self._unfinished = self._unfinished, []
            start = self._leave_out(failure, mine, flights)
        for flight in flights:
            flight.run_again()
        return start

    def _leave_out(
        self, failure: RunFailed, mine: Attempt | None, flights: Sequence["InFlight"]
    ) -> Restart | None:
        """Let the scheduler use the devices that are left, and say from where `mine` goes on."""
        attempt, scheduler = self.scheduler.failed, self.scheduler
        if attempt is None or attempt.failure is not failure or not attempt.failed:
            raise failure
        left = [b for b in scheduler.backends if b.device not in attempt.failed]
        pools = [scheduler.arena.pools[scheduler.backends.index(b)] for b in left]
        if not left:
            raise hopeless(failure, "no device is left: open one and make a new scheduler")
        if len(left) > 1 and not pools[-1].is_host:
            raise hopeless(
                failure, f"the last one left, {left[-1].name}, has memory the host cannot read"
            )
        try:
            start, owed, not_later = self._way_on(attempt, mine, flights, failure)
        finally:
            if scheduler.limit.stuck:
                # Reading a value hangs, on a device that will be found out when it is used.
                scheduler.abandon_memory()
        self._owed.update(dict.fromkeys(owed))
        self._lost.update(attempt.failed)
        self._gone.extend(b for b in scheduler.backends if b not in left)
        with contextlib.suppress(TensorplugError):
            # A device that is gone may raise even here.
            scheduler.give_back()
        scheduler.use(left, pools)
        after = 0 if start is None else start.after
        scheduler.survived.append(replace(failure.state, boundary=after, not_later=not_later))
        whence = f"from behind split {after - 1}" if after else "from the inputs"
        names = ", ".join(b.name for b in left)
        # As text: the error refers to frames, and those to memory that is not needed any more.
        logger.warning(
            "%s; going on with %s %s", str(failure), names, "; ".join((whence, *not_later))
        )
        scheduler.failed = None
        return start

    def _way_on(
        self,
        attempt: Attempt,
        mine: Attempt | None,
        flights: Sequence["InFlight"],
        failure: RunFailed,
    ) -> tuple[Restart | None, list[Restore], tuple[str, ...]]:
        """From where `mine` goes on, who restores states first, and why not from later on.

        What was in flight, and other runs, begin again from their inputs. Raises RunFailed.
        """
        failed = attempt.failed
        again = [a for flight in flights if (a := flight.attempt) is not attempt]
        again += [attempt] if attempt.schedule is not None else []
        if failure.state.cause == "hung":
            theirs = written(node for each in again for node in each.nodes_on(failed))
            self._spoilt.update(root for root in theirs if root.place is not None)
        not_later: list[str] = []
        if mine is attempt and attempt.completed < attempt.queued:
            not_later.append(f"split {attempt.completed} is not known to be done")
        if attempt.in_flight or flights:
            not_later.append("batches in flight share their memory, and begin again")
        lost = self._lost.union(failed)
        alone = [] if mine is None or mine.in_flight or flights else [mine]
        for restart in (r for each in alone for r in boundaries(each)):
            try:
                owed = [] if mine is attempt else self._to_restore(again, failed)
                owed += self._to_restore(alone, failed, restart)
                return with_values(alone[0], restart, lost), owed, tuple(not_later)
            except NotFromHere as reason:
                not_later.append(f"not from behind split {restart.after - 1}: {reason}")
        if mine is not None and mine is not attempt and mine.start is not None:
            again.append(mine)
        try:
            return None, self._to_restore(again, failed), tuple(not_later)
        except NotFromHere as reason:
            raise hopeless(failure, str(reason), not_later) from reason

    def restore(self) -> None:
        before, self._restoring = self._restoring, True
        try:
            while self._owed:
                self._call(next(iter(self._owed)))
        finally:
            self._restoring = before

    def _call(self, restore: Restore) -> None:
        # Runs in `restore` need no restoring by itself; it is owed again where it does not end.
        del self._owed[restore]
        try:
            with Attempt(self.scheduler):
                restore()
        except BaseException:
            self._owed[restore] = None
            raise

    def move(self, graph: Graph) -> None:
        if not self._lost:
            return
        for root in persistent(graph.leafs):
            if self._is_lost(root):
                self._move(root, graph)

    def without_lost(self, pins: Mapping[Tensor, Backend]) -> Mapping[Tensor, Backend]:
        return {node: backend for node, backend in pins.items() if backend not in self._gone}

    def forget(self) -> object:
        forgotten, self._buffers = self._buffers, []
        return forgotten

    def close(self) -> None:
        for buffer in self._buffers:
            buffer.close()
        self._buffers = []

    def _is_lost(self, root: Tensor, failed: Iterable[Device] = ()) -> bool:
        device = self.scheduler.place_of(root).buffer.type.device
        return device in self._lost or device in failed or root in self._spoilt

    def _to_restore(
        self,
        attempts: Sequence[Attempt],
        failed: Collection[Device],
        restart: Restart | None = None,
    ) -> list[Restore]:
        """Who must bring states back before `attempts` can go on from `restart`, or their inputs.

        Raises NotFromHere.
        """
        done = frozenset[Tensor]() if restart is None else restart.done
        begun = [node for attempt in attempts for node in attempt.nodes() if node not in done]
        graphs = [a.schedule.graph for a in attempts if a.schedule is not None]
        changing = written(node for graph in graphs for node in graph.nodes)
        owed: list[Restore] = []
        for root in persistent(leaf for graph in graphs for leaf in graph.leafs):
            lost = self._is_lost(root, failed)
            changed = not repeatable(begun, root)
            if root in self.states and (lost or changed):
                if any(attempt.in_flight for attempt in attempts):
                    raise NotFromHere(
                        f"{root} must be restored, and nobody knows as of which of the batches in "
                        "flight: run() them one by one"
                    )
                owed.append(self.states[root])
            elif changed:
                raise NotFromHere(
                    f"{root} was written, perhaps in part, and writing it again would give "
                    "something else: say with add_states() who restores it"
                )
            elif lost and root in changing:
                raise NotFromHere(f"{root} lay there: say with add_states() who restores it")
            elif lost and root not in self.sources:
                raise NotFromHere(f"{root} lay there: say with add_sources() where it comes from")
        kept = next((root for root in written(done) if root.place is not None), None)
        if kept is not None and (owed or self._owed):
            raise NotFromHere(
                f"{kept} was written before that, and restoring goes back to the inputs"
            )
        return owed

    def _move(self, root: Tensor, graph: Graph) -> None:
        data: Array | None = None
        if root in self.states:
            self._owed[self.states[root]] = None
        elif root in self.sources:
            data = np.asarray(self.sources[root]())
            if data.nbytes != root.nbytes:
                raise GraphError(f"{root}: its source gives {data.nbytes} bytes")
        else:
            raise DeviceLost(
                f"{root}: lay on a device that was lost; say with add_sources() where it comes "
                "from, or with add_states() who restores it"
            )
        place = self._room_for(root, graph)
        moved = replace(root, place=place)
        if data is None:
            put = partial(place.buffer.fill, 0)
        else:
            content = as_bytes(np.ascontiguousarray(data))
            put = partial(place.buffer.write_tensor, moved, place.offset, content)
        self.scheduler.limit.call(put, place.buffer.type.device)
        self.moved[root] = place
        self._spoilt.discard(root)

    def _room_for(self, root: Tensor, graph: Graph) -> Place:
        """Memory of the first backend that does all that `graph` does with `root`, if it fits."""
        spec = replace(root, place=None)
        assert root.place is not None
        users = [n for n in graph.nodes if any(s.root is root for s in n.sources)]
        backends = self.scheduler.backends
        for backend in (*(b for b in backends[:-1] if _does_all(b, users, root)), backends[-1]):
            try:
                (placed,), buffer = allocate(
                    [spec], backend.buffer_type, usage=root.place.buffer.usage
                )
            except OutOfMemory:
                if backend is backends[-1]:
                    raise
                continue
            self._buffers.append(buffer)
            assert placed.place is not None
            return placed.place
        raise AssertionError("the last backend gives memory or raises")


POLICIES: Mapping[str, type[Raise]] = {"raise": Raise, "replan": Replan}


def policy(name: str) -> type[Raise]:
    """The policy called `name`. Raises OptionError."""
    if name not in POLICIES:
        raise OptionError(f"Scheduler: on_failure={name!r}; choose from {', '.join(POLICIES)}")
    return POLICIES[name]


def repeatable(nodes: Sequence[Tensor], root: Tensor) -> bool:
    """Whether `nodes`, run again after a part of them ran, leave in `root` what they would have.

    So it is where they only overwrite it, and read it only when all of that is done.
    """
    writes = [i for i, node in enumerate(nodes) if root in node.written_roots]
    if not all(nodes[i].op in OVERWRITES for i in writes):
        return False
    return not any(_reads(node, root) for node in nodes[: writes[-1] + 1]) if writes else True


def _reads(node: Tensor, root: Tensor) -> bool:
    sources = list(node.operands)
    if root in node.written_roots and node.op in OVERWRITES:
        sources.pop(OPS[node.op].positions[OVERWRITES[node.op]])
    return any(source is not None and source.root is root for source in sources)


def _does_all(backend: Backend, users: Iterable[Tensor], root: Tensor) -> bool:
    kind = backend.buffer_type
    return kind.supports(root) and not any(
        backend.device.refuses(n, {s: kind for s in n.sources if s.root is root}) for n in users
    )
