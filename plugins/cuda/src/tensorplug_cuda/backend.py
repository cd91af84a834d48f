"""`CudaBackend`: a stream of a GPU."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, cast

from cupy.cuda import runtime

from tensorplug.device import Backend, Buffer, DeviceSpan, Event, Place
from tensorplug.planning.stages import AHEAD
from tensorplug_cuda.errors import driver_errors
from tensorplug_cuda.handles import Mark
from tensorplug_cuda.memory import ANY_WAY, CudaBuffer, address, overlap, queue_copy
from tensorplug_cuda.plan import CudaPlan, Ready, ready
from tensorplug_cuda.products import Products
from tensorplug_simt.backend import QueuedBackend
from tensorplug_simt.merging import Placed

if TYPE_CHECKING:
    from tensorplug_cuda.device import CudaDevice


NOT_READY = 600
"""The status of an event whose work goes on."""


class CudaEvent(Event):
    """A mark in a stream; streams of every GPU can wait for it."""

    def __init__(self, mark: Mark, device: "CudaDevice") -> None:
        self.mark = mark
        self.device = device

    def synchronize(self) -> None:
        with driver_errors(f"{self.device.name}: event"):
            self.mark.synchronize()

    @property
    def done(self) -> bool:
        # Also where the device is lost: waiting raises the error.
        return self.mark.status != NOT_READY


class Clock:
    """Marks around timed work, and when by the host's clock the latest mark that was looked at was
    reached.

    Each is counted from the one before: CUDA tells milliseconds as a float of 32 bits, which is too
    coarse for a kernel after some minutes.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._last = stream.record(Mark(timed=True))
        self._last.synchronize()
        self._host = perf_counter_ns()
        self._timed: list[tuple[str, Mark, Mark]] = []

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time what is queued inside."""
        start = self._stream.record(Mark(timed=True))
        yield
        self._timed.append((name, start, self._stream.record(Mark(timed=True))))

    def take(self) -> list[DeviceSpan]:
        """The spans of all work so far, each once."""
        timed, self._timed = self._timed, []
        return [DeviceSpan(name, self._at(start), self._at(end)) for name, start, end in timed]

    def _at(self, mark: Mark) -> int:
        self._host += round(mark.since(self._last) * 1e6)
        self._last = mark
        return self._host


class CudaBackend(QueuedBackend):
    """A stream of a GPU."""

    device: "CudaDevice"
    plan_class = CudaPlan
    event_class = CudaEvent
    _clock: Clock | None
    ahead: int
    """Set only where a plan may have branches: the scheduler then keeps the memory of parallel work
    apart (`SupportsConcurrency`)."""

    def __init__(self, device: "CudaDevice", stream: Any, sides: Sequence[Any]) -> None:
        self.stream = stream
        self.sides = tuple(sides)
        """Streams that only captures use, one for each branch that a plan may have."""
        if len(sides) > 1:
            self.ahead = AHEAD
        self.products = Products(self)
        # Whole before other threads may wait for it.
        super().__init__(device)

    # --- timing ----------------------------------------------------------------------------

    def _new_clock(self, *, wanted: bool) -> Clock | None:
        with driver_errors(f"{self.name}: clock"), self.device.current():
            return Clock(self.stream) if wanted else None

    def take_spans(self) -> Sequence[DeviceSpan]:
        """What was timed since the last call; all of it has been waited for."""
        with driver_errors(f"{self.name}: clock"), self.device.current():
            return super().take_spans()

    def timed(self, name: str) -> AbstractContextManager[None]:
        """Time what is queued inside, where the stream is profiled."""
        return self._clock.span(name) if self._clock is not None else nullcontext()

    # --- work ------------------------------------------------------------------------------

    def ready(self, launches: Sequence[Sequence[Placed]]) -> Sequence[Ready]:
        return [ready(self, parts) for parts in launches]

    def enqueue(self, launches: Sequence[Ready]) -> None:
        with driver_errors(f"{self.name}: launch"), self.device.current():
            for name, function, groups, local, arguments in launches:
                with self.timed(name):
                    function(groups, local, arguments, stream=self.stream)

    def _synchronize(self) -> None:
        with driver_errors(self.name), self._giving_up_held():
            stream = self.stream  # None where another thread has closed it, and its work is done
            if stream is not None:
                stream.synchronize()

    def _close(self) -> None:
        self.products.close()
        self.stream, self.sides = None, ()

    # --- transfers -------------------------------------------------------------------------

    def _queue_write(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        with self._queueing("write"):
            start, size = _address(buffer) + offset, data.nbytes
            runtime.memcpyAsync(start, address(data), size, ANY_WAY, self.stream.ptr)
            self._hold(self._mark(), data)

    def _queue_read(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        with self._queueing("read"):
            start, size = _address(buffer) + offset, out.nbytes
            runtime.memcpyAsync(address(out), start, size, ANY_WAY, self.stream.ptr)
            self._hold(self._mark(), out)

    def _can_copy(self, source: Backend, start: Place, target: Place, size: int) -> bool:
        here, there = target.buffer, start.buffer
        if not isinstance(there, CudaBuffer) or not isinstance(here, CudaBuffer):
            return False
        mine = here.device is self.device
        return mine and not overlap(there, start.offset, here, target.offset, size)

    def _queue_copy(self, start: Place, target: Place, size: int) -> None:
        there, here = cast("CudaBuffer", start.buffer), cast("CudaBuffer", target.buffer)
        with self._queueing("copy"):
            queue_copy(there, start.offset, here, target.offset, size, self.stream)

    @contextmanager
    def _queueing(self, what: str) -> Iterator[None]:
        with driver_errors(f"{self.name}: {what}"), self.device.current(), self.timed(what):
            yield

    # --- events ----------------------------------------------------------------------------

    def record(self) -> Event:
        """Mark all work queued so far."""
        with driver_errors(f"{self.name}: event"), self.device.current():
            return self._mark()

    def _mark(self) -> CudaEvent:
        return CudaEvent(self.stream.record(Mark()), self.device)

    def _wait(self, event: Event) -> None:
        with driver_errors(f"{self.name}: event"), self.device.current():
            self.stream.wait_event(cast("CudaEvent", event).mark)


def _address(buffer: Buffer) -> int:
    return cast("CudaBuffer", buffer).address
