"""`Races`: finds accesses to the same bytes, one of them a write, that nothing orders."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensorplug.device.backend import Backend
from tensorplug.device.part import Part
from tensorplug.device.ranges import Access, AddressSpace, Host, accesses, clash, clash_within_stage
from tensorplug.errors import HazardError

Stream = Backend | Host
Clock = dict[Stream, int]
"""For each stream, the number of its pieces of work that happened before."""


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


class Races:
    """The order and the accesses of work that streams and the host were asked for.

    Raises HazardError for work that nothing orders after an earlier access to the same bytes.
    """

    def __init__(self, name: Callable[[Backend], str]) -> None:
        """`name` returns the name of a stream in errors."""
        self.clocks = Clocks()
        self._name_of = name
        self._done: dict[AddressSpace, dict[Stream, _History]] = {}

    @property
    def pending(self) -> int:
        """The number of remembered accesses: those for which the host has not waited."""
        streams = (stream for found in self._done.values() for stream in found.values())
        return sum(len(history.counts) for history in streams)

    def forget(self) -> None:
        """Forget all accesses."""
        self._done.clear()

    def compute(self, stream: Backend, part: Part) -> None:
        """`stream` computes `part`; the work of one of its stages runs in parallel."""
        for stage in part.stages:
            found = clash_within_stage(stage, part.bindings)
            if found is not None:
                raise HazardError(
                    f"{self._name(stream)}: {found[1]}, while in parallel {found[0]}: a barrier is "
                    "missing between the two"
                )
        self.queue(stream, (a for work in part.work for a in accesses(work, part.bindings)))

    def queue(self, stream: Stream, wanted: Iterable[Access]) -> None:
        """`stream` accesses memory in order with its work."""
        count = self.clocks.queue(stream)
        clock = self.clocks.of(stream)
        for access in wanted:
            for other, earlier in self._unordered(stream, access.range.buffer, clock):
                if clash(earlier, access):
                    raise HazardError(self._report(other, earlier, stream, access))
            if stream is not Host.THREAD:
                # Host accesses are complete when the call returns: they precede all later work.
                self._keep(stream, count, access)

    def reach(self, mark: Mapping[Stream, int]) -> None:
        """The host has waited for the work that `mark` stands for."""
        self.clocks.reach(mark)
        known = self.clocks.of(Host.THREAD)
        for buffer, streams in list(self._done.items()):
            for stream, history in list(streams.items()):
                history.forget(known.get(stream, 0))
                if not history.counts:
                    del streams[stream]
            if not streams:
                del self._done[buffer]

    def _unordered(
        self, stream: Stream, buffer: AddressSpace, clock: Clock
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
        return self._name_of(stream)
