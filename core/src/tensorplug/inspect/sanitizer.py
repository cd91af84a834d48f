"""`Sanitizer`: hears what streams are asked for, and raises HazardError for unordered conflicts.

Vector clocks say what happens before what. A conflict of two streams, or of a stream and the host,
that nothing orders is an error even when the result happens to be right.
"""

import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from tensorplug.device.backend import Backend, Place
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
from tensorplug.graph.tensor import Array, Storage, Tensor
from tensorplug.system.forks import in_child

SANITIZE = "TENSORPLUG_SANITIZE"
"""The environment variable that checks what every scheduler queues when it is 1."""

Stream = Backend | Host
Clock = dict[Stream, int]
"""How much of each stream's work is known to be done."""


# --- what happens before what ------------------------------------------------------------------


class Clocks:
    """Vector clocks: for each stream, and the host, how much of the others' work it comes after."""

    def __init__(self) -> None:
        self._clocks: dict[Stream, Clock] = {}

    def of(self, stream: Stream) -> Clock:
        """What work queued on `stream` now comes after; its own entry is the work so far."""
        return self._clocks.setdefault(stream, {})

    def queue(self, stream: Stream) -> int:
        """Count a piece of work of `stream`: it comes after all that the host has waited for."""
        clock = self.of(stream)
        self._join(clock, self.of(Host.THREAD))
        clock[stream] = clock.get(stream, 0) + 1
        return clock[stream]

    def order(self, first: Stream, then: Stream) -> None:
        """Work of `then` from now on comes after the work of `first` so far."""
        self._join(self.of(then), self.of(first))

    def mark(self, stream: Stream) -> Clock:
        """What is done once the work of `stream` so far is done."""
        return dict(self.of(stream))

    def reach(self, mark: Mapping[Stream, int], then: Stream = Host.THREAD) -> None:
        """What `then` does from now on comes after a mark: the host has waited for it."""
        self._join(self.of(then), mark)

    @staticmethod
    def _join(clock: Clock, other: Mapping[Stream, int]) -> None:
        for stream, count in other.items():
            if count > clock.get(stream, 0):
                clock[stream] = count


# --- the sanitizer -----------------------------------------------------------------------------


@dataclass(slots=True)
class _History:
    """What one stream did to one buffer: the count of each piece of work, and its access."""

    counts: list[int]
    accesses: list[Access]

    def after(self, count: int) -> Sequence[Access]:
        """The accesses of later work."""
        return self.accesses[bisect_right(self.counts, count) :]

    def forget(self, count: int) -> None:
        """Drop the accesses of work up to `count`."""
        known = bisect_right(self.counts, count)
        del self.counts[:known], self.accesses[:known]


class Sanitizer:
    """Hears what streams are asked for, and raises HazardError for unordered conflicts.

    It knows orders that were asked for: waits for events, copies that follow their source, and the
    host's `synchronize()`. That devices keep them is what the conformance kit tests. Thread-safe.
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
        """Hear nothing any more."""
        for stream in self._names:
            stream.watches = tuple(w for w in stream.watches if w is not self)
        self._done.clear()

    @property
    def pending(self) -> int:
        """How many accesses are remembered: those that the host has not waited for."""
        streams = (stream for found in self._done.values() for stream in found.values())
        return sum(len(history.counts) for history in streams)

    # --- what streams tell (`Watch`) -------------------------------------------------------

    def runs(self, stream: Backend, bound: Part) -> None:
        """`stream` is about to queue a plan, whose stages run side by side."""
        for stage in bound.stages:
            clash = clash_beside(stage, bound.bindings)
            if clash is not None:
                raise HazardError(
                    f"{self._name(stream)}: {clash[1]}, while beside it {clash[0]}: a barrier is "
                    "missing between the two"
                )
        with self._lock:
            self._queue(stream, (a for work in bound.work for a in accesses(work, bound.bindings)))

    def moves(self, by: Backend | None, source: Place, target: Place | None, size: int) -> None:
        """A stream copies `size` bytes in order with its work, or the host does so now."""
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
        """The host has waited for `stream`."""
        with self._lock:
            self._reach(self._clocks.mark(stream))

    def marked(self, mark: Mark) -> None:
        """All work queued on the stream of `mark` so far is what it stands for."""
        with self._lock:
            self._marks[mark] = self._clocks.mark(mark.stream)

    def reached(self, mark: Mark, then: Backend | None) -> None:
        """Work queued on `then` from now on starts after `mark`; None: the host waited for it."""
        with self._lock:
            # One that was made before this listened stands for work that it knows nothing of.
            clock = self._marks.get(mark, {})
            if then is None:
                self._reach(clock)
            else:
                self._clocks.reach(clock, then)

    # --- what the scheduler tells ----------------------------------------------------------

    def about(self, tensor: Tensor) -> None:
        """What is copied next is this tensor."""
        self._subject = str(tensor)

    def touches(self, tensor: Tensor, place: Storage, *, writes: bool = False) -> None:
        """The host reads or writes `tensor` now."""
        self._by_host(tensor, range_at(place, tensor.nbytes), writes=writes)

    def shows(self, tensor: Tensor, value: Array) -> None:
        """The host hands out `value`, which `tensor` was read into."""
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
                # The host is done when it goes on: all that comes later comes after.
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
