"""`Fleet`: streams, the compute memory that they share, and the streams that still use it."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tensorplug.device.backend import Backend, queues_transfers
from tensorplug.device.buffer import BufferType
from tensorplug.device.marks import Mark
from tensorplug.planning.program import settling
from tensorplug.running.arena import Arena

if TYPE_CHECKING:
    from tensorplug.running.run import Calls


class Fleet:
    """The streams of a scheduler, by number. A fleet knows no schedule."""

    def __init__(
        self,
        backends: Sequence[Backend],
        pools: Sequence[BufferType],
        settle: Callable[[], None],
        calls: "Calls",
    ) -> None:
        """`pools` are the memory in which each computes; `settle` waits for all queued work.

        `calls` execute steps.
        """
        self.backends = tuple(backends)
        self.names = tuple(backend.name for backend in backends)
        self.queueing = frozenset(i for i, b in enumerate(self.backends) if queues_transfers(b))
        """The numbers of streams that queue transfers."""
        self.calls = calls
        self.settling = settling(len(self.backends))
        """The program that waits for all queued work."""
        self._settle = settle
        self.arena = Arena(pools, settle)
        self.sharers = tuple(
            tuple(i for i, other in enumerate(pools) if other is pool) for pool in pools
        )
        """For each stream the indices of all that compute in the same memory, its own too."""
        self.readers: dict[int, dict[Backend, Mark]] = {}
        """For each stream, the readers that it waits for before it overwrites its memory."""
        self.users: dict[BufferType, Mark] = {}
        """For memory that several streams share, the stream that computed in it last."""
        self.loose = False
        """True after a run that left no marks: the next batch waits for all queued work."""

    def forget_memory(self) -> None:
        """Drop the compute memory, which calls in progress may still hold, and begin with none.

        Errors of a run refer to its frames, and those to the fleet, which must not keep it alive.
        """
        self.arena = Arena(self.arena.pools, self._settle)
        self.loose = False
        self.forget_marks()

    def add_readers(self, lent: Iterable[tuple[int, Backend]]) -> None:
        """Let all streams that compute in the memory of a lender wait for its reader's work so far.

        They do not wait for later work of the reader.
        """
        marks: dict[Backend, Mark] = {}
        for lender, reader in lent:
            for i in self.sharers[lender]:
                if self.backends[i] is not reader:
                    if reader not in marks:
                        marks[reader] = Mark(reader)
                    self.readers.setdefault(i, {})[reader] = marks[reader]

    def enter(self, stream: int) -> None:
        """Let a stream wait for the streams that still use the memory in which it computes."""
        then = self.backends[stream]
        for mark in self.readers.pop(stream, {}).values():
            mark.order(then)
        user = self.users.get(self.arena.pools[stream])
        if user is not None and user.stream is not then:
            user.order(then)

    def leave(self, stream: int) -> None:
        """Note that a stream has computed in memory that it may share with others."""
        if len(self.sharers[stream]) > 1:
            self.users[self.arena.pools[stream]] = Mark(self.backends[stream])

    def forget_marks(self) -> None:
        """The host has waited for all queued work: no stream needs to wait for it again."""
        self.readers.clear()
        self.users.clear()
