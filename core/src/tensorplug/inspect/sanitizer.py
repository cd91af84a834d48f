"""`Sanitizer`: a race detector. It observes queued work and raises HazardError for data races.

A race is a pair of accesses to the same bytes, one of them a write, by two streams or by a stream
and the host, that nothing orders. Vector clocks track the order. A race is an error even if the
result happens to be right.
"""

import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from tensorplug.device.backend import Backend, End
from tensorplug.device.marks import Mark
from tensorplug.device.part import Part
from tensorplug.device.ranges import (
    Access,
    Host,
    Memory,
    Range,
    accesses,
    clash,
    clash_beside,
    range_at,
)
from tensorplug.errors import HazardError
from tensorplug.graph.tensor import Array, Place, Tensor
from tensorplug.system.forks import in_child

Stream = Backend | Host
Clock = dict[Stream, int]
"""For each stream, the number of its pieces of work that happened before."""


# --- what happens before what ------------------------------------------------------------------


class Clocks:
    """Vector clocks: for each stream and the host, how much work of the others happened before."""

    def __init__(self) -> None:
        self._clocks: dict[Stream, Clock] = {}

    def of(self, stream: Stream) -> Clock:
        """The clock of `stream`: the work that happens before work queued on it now.

        Its own entry is the number of pieces of work queued so far.
        """
        return self._clocks.setdefault(stream, {})

    def queue(self, stream: Stream) -> int:
        """Count a piece of work of `stream`; what the host waited for happens before it."""
        clock = self.of(stream)
        self._join(clock, self.of(Host.THREAD))
        clock[stream] = clock.get(stream, 0) + 1
        return clock[stream]

    def order(self, first: Stream, then: Stream) -> None:
        """The work of `first` so far happens before later work of `then`."""
        self._join(self.of(then), self.of(first))

    def mark(self, stream: Stream) -> Clock:
        """A copy of the clock of `stream`: what is complete once its work so far is complete."""
        return dict(self.of(stream))

    def reach(self, mark: Mapping[Stream, int], then: Stream = Host.THREAD) -> None:
        """What `mark` stands for happens before later work of `then`, by default of the host."""
        self._join(self.of(then), mark)

    @staticmethod
    def _join(clock: Clock, other: Mapping[Stream, int]) -> None:
        for stream, count in other.items():
            if count > clock.get(stream, 0):
                clock[stream] = count


# --- the sanitizer -----------------------------------------------------------------------------


@dataclass(slots=True)
class _History:
    """The accesses of one stream to one buffer, each with the count of its piece of work."""

    counts: list[int]
    accesses: list[Access]

    def after(self, count: int) -> Sequence[Access]:
        """The accesses of work after the first `count` pieces."""
        return self.accesses[bisect_right(self.counts, count) :]

    def forget(self, count: int) -> None:
        """Drop the accesses of the first `count` pieces of work."""
        known = bisect_right(self.counts, count)
        del self.counts[:known], self.accesses[:known]


class Sanitizer:
    """Observes the work of `streams` and raises HazardError for data races.

    The sanitizer knows the ordering that was requested: waits for events, copies that follow their
    source, `synchronize()` by the host. It does not check that devices obey the ordering; the
    conformance kit does. Thread-safe.
    """

    def __init__(self, *streams: Backend) -> None:
        self._clocks = Clocks()
        self._done: dict[Memory, dict[Stream, _History]] = {}
        self._marks: WeakKeyDictionary[Mark, Clock] = WeakKeyDictionary()
        self._subject = ""
        self._lock = threading.RLock()
        self._names: dict[Backend, str] = {}
        for stream in streams:
            same = sum(stream.name == other.name for other in self._names)
            self._names[stream] = f"{stream.name} stream {same + 1}" if same else stream.name
            stream.watches = (*stream.watches, self)
        in_child(self)

    def _renew_after_fork(self) -> None:
        self._lock = threading.RLock()

    def close(self) -> None:
        """Stop observing the streams, and forget all accesses."""
        for stream in self._names:
            stream.watches = tuple(w for w in stream.watches if w is not self)
        self._done.clear()

    @property
    def pending(self) -> int:
        """The number of remembered accesses: those for which the host has not waited."""
        streams = (stream for found in self._done.values() for stream in found.values())
        return sum(len(history.counts) for history in streams)

    # --- what streams tell (`Watch`) -------------------------------------------------------

    def runs(self, stream: Backend, bound: Part) -> None:
        """`stream` is about to queue a plan; the work of one of its stages runs in parallel."""
        for stage in bound.stages:
            clash = clash_beside(stage, bound.bindings)
            if clash is not None:
                raise HazardError(
                    f"{self._name(stream)}: {clash[1]}, while in parallel {clash[0]}: a barrier is "
                    "missing between the two"
                )
        with self._lock:
            self._queue(stream, (a for work in bound.work for a in accesses(work, bound.bindings)))

    def moves(self, by: Backend | None, source: End, target: End | None, size: int) -> None:
        """The stream `by` copies `size` bytes in order with its work; None: the host copies now."""
        if not size:
            return
        with self._lock:
            found = [Access(range_at(source, size), self._subject, "a copy")]
            if target is not None:
                span = range_at(target, size)
                found.append(Access(span, self._subject, "a copy", writes=True))
            self._queue(by or Host.THREAD, found)

    def ordered(self, first: Backend, then: Backend) -> None:
        """Work queued on `then` from now on starts after all work queued on `first` so far."""
        with self._lock:
            self._clocks.order(first, then)

    def synchronized(self, stream: Backend) -> None:
        """The host has waited for all work of `stream`."""
        with self._lock:
            self._reach(self._clocks.mark(stream))

    def marked(self, mark: Mark) -> None:
        """`mark` was recorded: it stands for all work queued on its stream so far."""
        with self._lock:
            self._marks[mark] = self._clocks.mark(mark.stream)

    def reached(self, mark: Mark, then: Backend | None) -> None:
        """Work queued on `then` from now on starts after `mark`; None: the host waited for it."""
        with self._lock:
            # A mark recorded before the sanitizer was attached stands for unknown work.
            clock = self._marks.get(mark, {})
            if then is None:
                self._reach(clock)
            else:
                self._clocks.reach(clock, then)

    # --- what the scheduler tells ----------------------------------------------------------

    def about(self, tensor: Tensor) -> None:
        """The next copy copies `tensor`."""
        self._subject = str(tensor)

    def touches(self, tensor: Tensor, place: Place, *, writes: bool = False) -> None:
        """The host reads or writes `tensor` now."""
        self._by_host(tensor, range_at(place, tensor.nbytes), writes=writes)

    def shows(self, tensor: Tensor, value: Array) -> None:
        """The host returns `value`, an array into which `tensor` was read."""
        start = value.ctypes.data
        self._by_host(tensor, Range(Host.MEMORY, start, start + tensor.nbytes), writes=False)

    # --- checking --------------------------------------------------------------------------

    def _by_host(self, tensor: Tensor, span: Range, *, writes: bool) -> None:
        work = "an upload" if writes else "a result"
        with self._lock:
            self._queue(Host.THREAD, (Access(span, str(tensor), work, writes=writes),))

    def _queue(self, stream: Stream, wanted: Iterable[Access]) -> None:
        count = self._clocks.queue(stream)
        clock = self._clocks.of(stream)
        for access in wanted:
            for other, earlier in self._unordered(stream, access.range.buffer, clock):
                if clash(earlier, access):
                    raise HazardError(self._report(other, earlier, stream, access))
            if stream is not Host.THREAD:
                # Host accesses are complete when the call returns: they precede all later work.
                self._keep(stream, count, access)

    def _unordered(
        self, stream: Stream, buffer: Memory, clock: Clock
    ) -> Iterator[tuple[Stream, Access]]:
        for other, history in self._done.get(buffer, {}).items():
            if other is not stream:
                for earlier in history.after(clock.get(other, 0)):
                    yield other, earlier

    def _keep(self, stream: Stream, count: int, access: Access) -> None:
        history = self._done.setdefault(access.range.buffer, {}).setdefault(
            stream, _History([], [])
        )
        history.counts.append(count)
        history.accesses.append(access)

    def _reach(self, mark: Mapping[Stream, int]) -> None:
        self._clocks.reach(mark)
        known = self._clocks.of(Host.THREAD)
        for buffer, streams in list(self._done.items()):
            for stream, history in list(streams.items()):
                history.forget(known.get(stream, 0))
                if not history.counts:
                    del streams[stream]
            if not streams:
                del self._done[buffer]

    def _report(self, first: Stream, earlier: Access, then: Stream, later: Access) -> str:
        before, now = self._name(first), self._name(then)
        wait = f"{before}.synchronize()"
        if then is not Host.THREAD:
            wait = f"order_after({before}, {now})"
        return (
            f"{now}: {later}, while on {before} {earlier}: nothing orders them; {wait} is missing "
            "between the two"
        )

    def _name(self, stream: Stream) -> str:
        if isinstance(stream, Host):
            return stream.value
        return self._names.get(stream, stream.name)
