"""`CudaBackend`: a stream of a GPU."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeGuard

from cupy.cuda import Event as Mark
from cupy.cuda import get_elapsed_time, runtime

from tensorplug.device import (
    Backend,
    Buffer,
    DeviceError,
    DeviceSpan,
    Event,
    Group,
    Place,
    Tensor,
)
from tensorplug.planning.stages import AHEAD
from tensorplug_cuda.errors import driver_errors
from tensorplug_cuda.memory import ANY_WAY, CudaBuffer, address, overlap, queue_copy
from tensorplug_cuda.plan import CudaPlan, enqueue, ready
from tensorplug_cuda.products import Products
from tensorplug_simt.backend import SimtBackend
from tensorplug_simt.merging import Placed

if TYPE_CHECKING:
    from tensorplug_cuda.device import CudaDevice


class CudaEvent(Event):
    """A mark in a stream; streams of every GPU can wait for it."""

    def __init__(self, mark: Any, device: "CudaDevice") -> None:
        self.mark = mark
        self.device = device

    def synchronize(self) -> None:
        with driver_errors(f"{self.device.name}: event"):
            self.mark.synchronize()

    @property
    def done(self) -> bool:
        with driver_errors(f"{self.device.name}: event"):
            return bool(self.mark.done)


class Clock:
    """Marks around timed work, and where the GPU's clock stood against the host's."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._start = stream.record(Mark())
        self._start.synchronize()
        self._host = perf_counter_ns()
        self._timed: list[tuple[str, Any, Any]] = []

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time what is queued inside."""
        start = self._stream.record(Mark())
        yield
        self._timed.append((name, start, self._stream.record(Mark())))

    def take(self) -> list[DeviceSpan]:
        """The spans of all work so far, each once."""
        timed, self._timed = self._timed, []
        return [DeviceSpan(name, self._at(start), self._at(end)) for name, start, end in timed]

    def _at(self, mark: Any) -> int:
        milliseconds: float = get_elapsed_time(self._start, mark)
        return self._host + round(milliseconds * 1e6)


class CudaBackend(SimtBackend):
    """Work runs in the order in which it was queued, while the host goes on."""

    device: "CudaDevice"
    plan_class = CudaPlan
    ahead: int
    """Only of streams with others beside them: these want memory of work side by side kept apart
    (`SupportsConcurrency`)."""

    def __init__(self, device: "CudaDevice", stream: Any, sides: Sequence[Any]) -> None:
        self.stream = stream
        self.sides = tuple(sides)
        """Streams for captures alone, as many as a plan may have branches."""
        if len(sides) > 1:
            self.ahead = AHEAD
        self._held: deque[tuple[Any, memoryview]] = deque()
        self._clock: Clock | None = None
        self.products = Products(self)
        # Whole before other threads may wait for it.
        super().__init__(device)

    # --- timing ----------------------------------------------------------------------------

    @property
    def profile(self) -> bool:
        """Whether work queued from now on is timed: launch by launch, without graphs."""
        return self._clock is not None

    @profile.setter
    def profile(self, wanted: bool) -> None:
        if wanted == self.profile:
            return
        self.drain()
        with driver_errors(f"{self.name}: clock"), self.device.current():
            self._clock = Clock(self.stream) if wanted else None

    def take_spans(self) -> Sequence[DeviceSpan]:
        """What was timed since the last call; all of it has been waited for."""
        with driver_errors(f"{self.name}: clock"), self.device.current():
            return self._clock.take() if self._clock is not None else ()

    def timed(self, name: str) -> AbstractContextManager[None]:
        """Time what is queued inside, where the stream is profiled."""
        return self._clock.span(name) if self._clock is not None else nullcontext()

    # --- work ------------------------------------------------------------------------------

    def _launch(self, work: Tensor | Group, placed: Sequence[Placed]) -> None:
        with driver_errors(f"{self.name}: launch"), self.device.current():
            enqueue(self, [ready(self, [part]) for part in placed])

    def _synchronize(self) -> None:
        with driver_errors(self.name):
            self.stream.synchronize()
        # Any thread may wait: what another one holds at this moment stays in the old deque.
        self._held = deque()

    def _close(self) -> None:
        self.products.close()
        self.stream, self.sides = None, ()

    # --- transfers -------------------------------------------------------------------------

    def write_async(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        """Queue a copy of host bytes to `offset` of `buffer`."""
        buffer._check(offset, data.nbytes, "write")
        if not self._owns(buffer):
            self.synchronize()
            buffer.write(offset, data)
        elif data.nbytes:
            with self._queueing("write"):
                start, size = buffer.address + offset, data.nbytes
                runtime.memcpyAsync(start, address(data), size, ANY_WAY, self.stream.ptr)
                self._hold(data)

    def read_async(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        """Queue a copy from `offset` of `buffer` to host bytes."""
        buffer._check(offset, out.nbytes, "read")
        if not self._owns(buffer):
            self.synchronize()
            buffer.read_into(offset, out)
        elif out.nbytes:
            with self._queueing("read"):
                start, size = buffer.address + offset, out.nbytes
                runtime.memcpyAsync(address(out), start, size, ANY_WAY, self.stream.ptr)
                self._hold(out)

    def copy_async(self, source: Backend, start: Place, target: Place, size: int) -> bool:
        """Queue a copy from any GPU to this one that starts after all work queued on `source`."""
        here, there = target.buffer, start.buffer
        if not isinstance(source, CudaBackend) or not isinstance(there, CudaBuffer):
            return False
        if not self._owns(here):
            return False
        there._check(start.offset, size, "copy")
        here._check(target.offset, size, "copy")
        if overlap(there, start.offset, here, target.offset, size):
            return False
        if source is not self:
            self.wait(source.record())
        with self._queueing("copy"):
            queue_copy(there, start.offset, here, target.offset, size, self.stream)
        return True

    def _owns(self, buffer: Buffer) -> TypeGuard[CudaBuffer]:
        return isinstance(buffer, CudaBuffer) and buffer.owner is self.device

    @contextmanager
    def _queueing(self, what: str) -> Iterator[None]:
        with driver_errors(f"{self.name}: {what}"), self.device.current(), self.timed(what):
            yield

    def _hold(self, data: memoryview) -> None:
        """Keep host memory until its transfer is over."""
        held = self._held
        while held and held[0][0].done:
            held.popleft()
        held.append((self.stream.record(Mark(disable_timing=True)), data))

    # --- events ----------------------------------------------------------------------------

    def record(self) -> Event:
        """Mark all work queued so far."""
        with driver_errors(f"{self.name}: event"), self.device.current():
            return CudaEvent(self.stream.record(Mark(disable_timing=True)), self.device)

    def accepts(self, event: Event) -> bool:
        """Whether `wait` can order this stream after `event`: those of every GPU."""
        return isinstance(event, CudaEvent)

    def wait(self, event: Event) -> None:
        """Start work queued from now on after `event`."""
        if not isinstance(event, CudaEvent):
            raise DeviceError(f"{self.name}: cannot wait for {event!r} of another kind")
        with driver_errors(f"{self.name}: event"), self.device.current():
            self.stream.wait_event(event.mark)
