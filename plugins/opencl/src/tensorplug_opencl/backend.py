"""`OpenCLBackend`: an in-order queue of a device."""

from collections import deque
from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from tensorplug.device import (
    Backend,
    Buffer,
    DeviceError,
    DeviceSpan,
    Event,
    Group,
    Place,
    Tensor,
    map_driver_errors,
)
from tensorplug_opencl.memory import ERRORS, OpenCLBuffer
from tensorplug_opencl.plan import OpenCLPlan, bind, enqueue
from tensorplug_simt.backend import SimtBackend
from tensorplug_simt.merging import Placed

if TYPE_CHECKING:
    from tensorplug_opencl.device import OpenCLDevice


class OpenCLEvent(Event):
    """A marker in a queue."""

    def __init__(self, marker: Any, device: "OpenCLDevice") -> None:
        self.marker = marker
        self.device = device

    def synchronize(self) -> None:
        with map_driver_errors(ERRORS, f"{self.device.name}: event"):
            self.marker.wait()

    @property
    def done(self) -> bool:
        status = cl.command_execution_status
        return bool(self.marker.command_execution_status == status.COMPLETE)


class Clock:
    """Events of timed work, and how far the device's clock is ahead of the host's."""

    def __init__(self, queue: Any) -> None:
        # The host sees a mark late, never early: the quickest of several look is the nearest.
        self._ahead = max(self._seen_ahead(queue) for _ in range(5))
        self.events: list[tuple[str, Any]] = []

    @staticmethod
    def _seen_ahead(queue: Any) -> int:
        marker = cl.enqueue_marker(queue)
        marker.wait()
        return int(marker.profile.end) - perf_counter_ns()

    def take(self) -> list[DeviceSpan]:
        """The spans of all events so far, each once."""
        events, self.events = self.events, []
        return [
            DeviceSpan(name, event.profile.start - self._ahead, event.profile.end - self._ahead)
            for name, event in events
        ]


class OpenCLBackend(SimtBackend):
    """Work runs in the order in which it was queued, while the host goes on."""

    device: "OpenCLDevice"
    plan_class = OpenCLPlan

    def __init__(self, device: "OpenCLDevice", queue: Any) -> None:
        self.queue = queue
        self._held: deque[tuple[Any, memoryview]] = deque()
        self._clock: Clock | None = None
        # Whole before other threads may wait for it.
        super().__init__(device)

    # --- timing ----------------------------------------------------------------------------

    @property
    def profile(self) -> bool:
        """Whether work queued from now on is timed, which makes queueing it slower."""
        return self._clock is not None

    @profile.setter
    def profile(self, wanted: bool) -> None:
        if wanted == self.profile:
            return
        self.drain()
        self.queue = self.device.queue(timed=wanted)
        self._clock = Clock(self.queue) if wanted else None

    def take_spans(self) -> Sequence[DeviceSpan]:
        """What was timed since the last call; all of it has been waited for."""
        return self._clock.take() if self._clock is not None else ()

    def timed(self, name: str, event: Any) -> None:
        """Remember the event of queued work where work is timed."""
        if self._clock is not None:
            self._clock.events.append((name, event))

    # --- work ------------------------------------------------------------------------------

    def _launch(self, work: Tensor | Group, placed: Sequence[Placed]) -> None:
        enqueue(self, [bind(self.device, [part]) for part in placed])

    def _synchronize(self) -> None:
        with map_driver_errors(ERRORS, self.name):
            self.queue.finish()
        # Any thread may wait: what another one holds at this moment stays in the old deque.
        self._held = deque()

    def _close(self) -> None:
        self.queue = None

    # --- transfers -------------------------------------------------------------------------

    def write_async(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        """Queue a copy of host bytes to `offset` of `buffer`."""
        buffer._check(offset, data.nbytes, "write")
        if not isinstance(buffer, OpenCLBuffer) or buffer._device is not self.device:
            self.synchronize()
            buffer.write(offset, data)
        elif data.nbytes:
            self._hold(self._copy(buffer.memory, data, dst_offset=offset, is_blocking=False), data)

    def read_async(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        """Queue a copy from `offset` of `buffer` to host bytes."""
        buffer._check(offset, out.nbytes, "read")
        if not isinstance(buffer, OpenCLBuffer) or buffer._device is not self.device:
            self.synchronize()
            buffer.read_into(offset, out)
        elif out.nbytes:
            self._hold(self._copy(out, buffer.memory, src_offset=offset, is_blocking=False), out)

    def copy_async(self, source: Backend, start: Place, target: Place, size: int) -> bool:
        """Queue a copy within the device that starts after all work queued on `source`."""
        if not isinstance(source, OpenCLBackend) or source.device is not self.device:
            return False
        here, there = target.buffer, start.buffer
        if not isinstance(here, OpenCLBuffer) or not isinstance(there, OpenCLBuffer):
            return False
        if here._device is not self.device or there._device is not self.device:
            return False
        apart = start.offset + size <= target.offset or target.offset + size <= start.offset
        if here is there and not apart:
            return False
        there._check(start.offset, size, "copy")
        here._check(target.offset, size, "copy")
        if source is not self:
            self.wait(source.record())
        self._copy(
            here.memory,
            there.memory,
            byte_count=size,
            src_offset=start.offset,
            dst_offset=target.offset,
        )
        return True

    def _copy(self, target: Any, source: Any, **options: Any) -> Any:
        with map_driver_errors(ERRORS, f"{self.name}: copy"):
            event = cl.enqueue_copy(self.queue, target, source, **options)
        self.timed("copy", event)
        return event

    def _hold(self, event: Any, data: memoryview) -> None:
        """Keep the event of a transfer until it is over, and the host memory with it.

        PyOpenCL waits for such a transfer when its event is dropped.
        """
        over = cl.command_execution_status.COMPLETE
        held = self._held
        while held and held[0][0].command_execution_status <= over:
            held.popleft()
        held.append((event, data))

    # --- events ----------------------------------------------------------------------------

    def record(self) -> Event:
        """Mark all work queued so far."""
        with map_driver_errors(ERRORS, f"{self.name}: event"):
            # In a queue in order a barrier marks as much as a marker. Who waits for a marker of
            # Intel's driver waits for what was queued behind it too (seen with 2026.22.10).
            marker = cl.enqueue_barrier(self.queue)
            # Another queue may wait for the mark only once it is on its way.
            self.queue.flush()
        return OpenCLEvent(marker, self.device)

    def accepts(self, event: Event) -> bool:
        """Whether `wait` can order this queue after `event`: those of the same device."""
        return isinstance(event, OpenCLEvent) and event.device is self.device

    def wait(self, event: Event) -> None:
        """Start work queued from now on after `event`."""
        if not isinstance(event, OpenCLEvent):
            raise DeviceError(f"{self.name}: cannot wait for {event!r} of another kind")
        with map_driver_errors(ERRORS, f"{self.name}: event"):
            cl.enqueue_barrier(self.queue, wait_for=[event.marker])
