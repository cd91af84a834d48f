"""`Recovery`: leaves out a device that failed, and finds how the run goes on without it."""

import contextlib
import logging
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tensorplug.device.backend import Backend
from tensorplug.device.device import Device
from tensorplug.errors import OptionError, RunFailed, RunState, TensorplugError
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.table import OPS
from tensorplug.running.failure import Attempt, written
from tensorplug.running.lost import MemoryLost, Restore, persistent
from tensorplug.running.recovery.moving import counterpart, move_home, move_lost
from tensorplug.running.recovery.restart import NotFromHere, Restart, boundaries, with_values

if TYPE_CHECKING:
    from tensorplug.running.results import InFlight
    from tensorplug.running.runs import Runs

logger = logging.getLogger("tensorplug.running")

SURVIVED = 64
"""Failures that are remembered."""
OVERWRITES = {"cpy": "target", "set_rows": "table"}
"""Ops that write into a source without reading it: a second time changes nothing."""


class Recovery:
    """Recovers the runs of a scheduler. Only `until_done` calls it, when an attempt has failed.

    A run resumes from the last boundary between splits that is possible, otherwise from its inputs.
    """

    def __init__(self, runs: "Runs") -> None:
        self.runs = runs
        self.order = runs.fleet.names
        """The names of all streams, lost ones too, the one of the highest priority first."""
        self.survived: deque[RunState] = deque(maxlen=SURVIVED)
        """The last failures after which runs went on, and from where."""
        self.unfinished: list[InFlight] = []
        """Batches that were in flight when a device failed, oldest first, to be repeated."""
        self._restoring = False

    def go_on(self, failure: RunFailed | MemoryLost, mine: Attempt) -> Attempt:
        """Return the attempt that follows `mine`, or raise `failure` with the reason.

        Lost tensors have new memory then, states are restored, and other batches were repeated.
        """
        while True:
            start, graphs = self._without_lost(failure, mine)
            mine = mine.next(start)
            try:
                self._move(graphs)
                self._restore()
            except RunFailed as another:
                failure = another
            else:
                return mine

    def _without_lost(
        self, failure: RunFailed | MemoryLost, mine: Attempt
    ) -> tuple[Restart | None, list[Graph]]:
        """From where `mine` resumes, and the graphs whose tensors need new memory before that."""
        if isinstance(failure, MemoryLost):
            return mine.start, [failure.graph]
        if self._restoring:
            # States are restored again from the beginning, for the run that needs them.
            raise failure
        graphs = [a.schedule.graph for a in (mine, self.runs.failed) if a and a.schedule]
        with self.runs.turn:
            flights, self.unfinished = self.unfinished, []
            start = self._leave_out(failure, mine, flights)
        for flight in flights:
            flight.run_again()
        return start, graphs

    # --- without the device ------------------------------------------------------------------

    def _leave_out(
        self, failure: RunFailed, mine: Attempt, flights: Sequence["InFlight"]
    ) -> Restart | None:
        """Let the scheduler use the devices that are left; return from where `mine` resumes."""
        attempt, runs, lost = self.runs.failed, self.runs, self.runs.lost
        if attempt is None or attempt.failure is not failure or not attempt.failed:
            raise failure
        present = dict(zip(runs.fleet.backends, runs.fleet.arena.pools, strict=True))
        left = [b for b in present if b.device not in attempt.failed]
        # A device that is left may compute in memory of a lost one: pinned memory of a GPU.
        pools = [b.buffer_type if present[b].device in attempt.failed else present[b] for b in left]
        if not left:
            raise hopeless(failure, "no device is left: open one and make a new scheduler")
        if len(left) > 1 and not pools[-1].is_host:
            raise hopeless(
                failure, f"the last one left, {left[-1].name}, has memory the host cannot read"
            )
        try:
            start, owed, not_later = self._resumption(attempt, mine, flights, failure)
        finally:
            if runs.limit.stuck:
                # Another device hung while a value was read; a later step that uses it fails.
                runs.forget_memory()
        lost.owed.update(dict.fromkeys(owed))
        lost.devices.update(attempt.failed)
        lost.streams.update((b, pool) for b, pool in present.items() if b not in left)
        with contextlib.suppress(TensorplugError):
            # A lost device may raise even when its memory is released.
            runs.release()
        runs.use(left, pools)
        after = 0 if start is None else start.after
        self.survived.append(replace(failure.state, boundary=after, not_later=not_later))
        origin = f"from behind split {after - 1}" if after else "from the inputs"
        names = ", ".join(b.name for b in left)
        # As text: the error keeps frames, and those memory.
        logger.warning(
            "%s; going on with %s %s", str(failure), names, "; ".join((origin, *not_later))
        )
        runs.failed = None
        return start

    def _resumption(
        self, attempt: Attempt, mine: Attempt, flights: Sequence["InFlight"], failure: RunFailed
    ) -> tuple[Restart | None, list[Restore], tuple[str, ...]]:
        """Where `mine` resumes, which functions restore states first, and why it is not later.

        `attempt` is the one that failed. Batches in flight, and other runs than `mine`, are
        repeated from their inputs. Raises RunFailed.
        """
        failed, lost = attempt.failed, self.runs.lost
        again = [a for flight in flights if (a := flight.attempt) is not attempt]
        again += [attempt] if attempt.schedule is not None else []
        if failure.state.cause == "hung":
            theirs = written(node for each in again for node in each.nodes_on(failed))
            lost.spoilt.update(root for root in theirs if root.place is not None)
        not_later: list[str] = []
        if mine is attempt and attempt.completed < attempt.queued:
            not_later.append(f"split {attempt.completed} is not known to be done")
        if attempt.in_flight or flights:
            not_later.append("batches in flight share their memory, and begin again")
        gone = lost.devices.union(failed)
        for restart in () if mine.in_flight or flights else boundaries(mine):
            try:
                owed = [] if mine is attempt else self._to_restore(again, failed)
                owed += self._to_restore([mine], failed, restart)
                return with_values(mine, restart, gone), owed, tuple(not_later)
            except NotFromHere as reason:
                not_later.append(f"not from behind split {restart.after - 1}: {reason}")
        if mine is not attempt and mine.start is not None:
            again.append(mine)
        try:
            return None, self._to_restore(again, failed), tuple(not_later)
        except NotFromHere as reason:
            raise hopeless(failure, str(reason), not_later) from reason

    # --- states ------------------------------------------------------------------------------

    def _to_restore(
        self,
        attempts: Sequence[Attempt],
        failed: Collection[Device],
        restart: Restart | None = None,
    ) -> list[Restore]:
        """The functions that must restore states before `attempts` resume from `restart`.

        Raises NotFromHere if that is impossible.
        """
        lost = self.runs.lost
        done = frozenset[Tensor]() if restart is None else restart.done
        begun = [node for attempt in attempts for node in attempt.nodes() if node not in done]
        graphs = [a.schedule.graph for a in attempts if a.schedule is not None]
        changing = written(node for graph in graphs for node in graph.nodes)
        owed: list[Restore] = []
        for root in persistent(leaf for graph in graphs for leaf in graph.leafs):
            is_lost, changed = lost.has(root, failed), not repeatable(begun, root)
            if root in lost.states and (is_lost or changed):
                in_flight = any(attempt.in_flight for attempt in attempts)
                if in_flight and lost.states[root] not in lost.repeats:
                    raise NotFromHere(
                        f"{root} must be restored, and it is unknown to which of the batches in "
                        "flight: run() them one by one"
                    )
                owed.append(lost.states[root])
            elif changed:
                raise NotFromHere(
                    f"{root} was written, perhaps in part, and writing it again would give "
                    "something else: say with add_states() who restores it"
                )
            elif is_lost and root in changing:
                raise NotFromHere(f"{root} lay there: say with add_states() who restores it")
            elif is_lost and root not in lost.sources:
                raise NotFromHere(f"{root} lay there: say with add_sources() where it comes from")
        kept = next((root for root in written(done) if root.place is not None), None)
        if kept is not None and (owed or lost.owed):
            raise NotFromHere(
                f"{kept} was written before that, and restoring goes back to the inputs"
            )
        return owed

    def _move(self, graphs: Sequence[Graph]) -> None:
        with self.runs.turn, Attempt(self.runs):
            for graph in graphs:
                self.runs.lost.owed.update(dict.fromkeys(move_lost(graph, self.runs)))

    def _restore(self) -> None:
        """Restore states; the functions may run schedules, so nothing has the turn meanwhile."""
        owed, before = self.runs.lost.owed, self._restoring
        self._restoring = True
        try:
            while owed:
                restore = next(iter(owed))
                # Runs in `restore` need no restoring; it is owed again if it does not end.
                del owed[restore]
                try:
                    with Attempt(self.runs):
                        restore()
                except BaseException:
                    owed[restore] = None
                    raise
        finally:
            self._restoring = before


POLICIES: Mapping[str, type[Recovery] | None] = {"raise": None, "replan": Recovery}
"""Values of `on_failure`."""


def take_back(backend: Backend, runs: "Runs") -> None:
    """Use `backend` in the place of a lost stream of its name. Nothing is queued.

    The caller has the turn. Raises OptionError, OutOfMemory, DeviceError.
    """
    lost = runs.lost
    backend.check_open()
    old = next((stream for stream in lost.streams if stream.name == backend.name), None)
    if old is None:
        names = ", ".join(stream.name for stream in lost.streams) or "none"
        raise OptionError(f"take_back: no stream called {backend.name} was lost; lost are {names}")
    if backend.device in lost.devices:
        raise OptionError(
            f"take_back: {backend!r} is a stream of the device that was lost; open a new device"
        )
    pool = counterpart(lost.streams[old], backend.device) or backend.buffer_type
    assert runs.recovery is not None, "nothing is lost without recovery"
    order, fleet = runs.recovery.order, runs.fleet
    both = [*zip(fleet.backends, fleet.arena.pools, strict=True), (backend, pool)]
    both.sort(key=lambda pair: order.index(pair[0].name))
    runs.release()
    runs.use(*zip(*both, strict=True))
    runs.observe(backend)
    del lost.streams[old]
    lost.successors[old] = backend
    move_home(backend, runs)
    logger.info("%s: is used again", backend.name)


def hopeless(failure: RunFailed, reason: str, not_later: Sequence[str] = ()) -> RunFailed:
    """`failure` with the reason why nothing can be done without the device.

    `not_later` says why the run does not resume from a boundary.
    """
    remedy = "; ".join((reason, *not_later))
    text = str(failure).removesuffix(failure.state.remedy) + remedy
    return RunFailed(text, replace(failure.state, remedy=remedy, not_later=tuple(not_later)))


def repeatable(nodes: Sequence[Tensor], root: Tensor) -> bool:
    """True if some of `nodes` may run twice and `root` has the same value afterwards.

    They must only overwrite it, and read it only after the last write.
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
