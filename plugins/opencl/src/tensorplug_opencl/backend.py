"""`OpenCLBackend`: an in-order queue of a device."""

from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, cast

import pyopencl as cl

from tensorplug.device import Backend, Buffer, DeviceSpan, Event, Place, map_driver_errors
from tensorplug_opencl.memory import ERRORS, OpenCLBuffer
from tensorplug_opencl.plan import OpenCLPlan, Ready, bind
from tensorplug_simt.backend import QueuedBackend
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
        return bool(self.marker.command_execution_status <= status.COMPLETE)


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


class OpenCLBackend(QueuedBackend):
    """An in-order queue."""

    device: "OpenCLDevice"
    plan_class = OpenCLPlan
    event_class = OpenCLEvent
    _clock: Clock | None

    def __init__(self, device: "OpenCLDevice", queue: Any) -> None:
        self.queue = queue
        # Whole before other threads may wait for it.
        super().__init__(device)

    def _new_clock(self, *, wanted: bool) -> Clock | None:
        self.queue = self.device.queue(timed=wanted)
        return Clock(self.queue) if wanted else None

    def timed(self, name: str, event: Any) -> None:
        """Remember the event of queued work where work is timed."""
        if self._clock is not None:
            self._clock.events.append((name, event))

    # --- work ------------------------------------------------------------------------------

    def ready(self, launches: Sequence[Sequence[Placed]]) -> Sequence[Ready]:
        return [bind(self.device, parts) for parts in launches]

    def enqueue(self, launches: Sequence[Ready]) -> None:
        queue, put = self.queue, cl.enqueue_nd_range_kernel
        with map_driver_errors(ERRORS, f"{self.name}: launch"):
            if self.profile:
                for kernel, size, local in launches:
                    self.timed(kernel.function_name, put(queue, kernel, size, local))
                return
            for kernel, size, local in launches:
                put(queue, kernel, size, local)

    def _synchronize(self) -> None:
        with map_driver_errors(ERRORS, self.name), self._giving_up_held():
            queue = self.queue  # None where another thread has closed it, and its work is done
            if queue is not None:
                queue.finish()

    def _close(self) -> None:
        self.queue = None

    # --- transfers -------------------------------------------------------------------------

    def _queue_write(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        self._hold(self._copy(_memory(buffer), data, dst_offset=offset, is_blocking=False), data)

    def _queue_read(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        self._hold(self._copy(out, _memory(buffer), src_offset=offset, is_blocking=False), out)

    def _can_copy(self, source: Backend, start: Place, target: Place, size: int) -> bool:
        apart = start.offset + size <= target.offset or target.offset + size <= start.offset
        return super()._can_copy(source, start, target, size) and (
            apart or start.buffer is not target.buffer
        )

    def _queue_copy(self, start: Place, target: Place, size: int) -> None:
        self._copy(
            _memory(target.buffer),
            _memory(start.buffer),
            byte_count=size,
            src_offset=start.offset,
            dst_offset=target.offset,
        )

    def _copy(self, target: Any, source: Any, **options: Any) -> OpenCLEvent:
        # PyOpenCL waits for a transfer of host memory when its event is dropped.
        with map_driver_errors(ERRORS, f"{self.name}: copy"):
            event = cl.enqueue_copy(self.queue, target, source, **options)
        self.timed("copy", event)
        return OpenCLEvent(event, self.device)

    # --- events ----------------------------------------------------------------------------

    def record(self) -> Event:
        """Mark all work queued so far."""
        with map_driver_errors(ERRORS, f"{self.name}: event"):
            # In an in-order queue a barrier does what a marker does. A wait for a marker of Intel's
            # driver also waits for work that was queued after it (seen with 2026.22.10).
            marker = cl.enqueue_barrier(self.queue)
            # Another queue may wait for the mark only once it is on its way.
            self.queue.flush()
        return OpenCLEvent(marker, self.device)

    def accepts(self, event: Event) -> bool:
        """Whether `wait` can order this queue after `event`: those of the same device."""
        return isinstance(event, OpenCLEvent) and event.device is self.device

    def _wait(self, event: Event) -> None:
        with map_driver_errors(ERRORS, f"{self.name}: event"):
            cl.enqueue_barrier(self.queue, wait_for=[cast("OpenCLEvent", event).marker])


def _memory(buffer: Buffer) -> Any:
    return cast("OpenCLBuffer", buffer).memory
