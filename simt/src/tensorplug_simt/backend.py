"""What streams of devices whose work is lowered have in common: `SimtBackend`, `QueuedBackend`."""

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

from tensorplug.device import (
    Backend,
    Bindings,
    Buffer,
    DeviceError,
    DeviceSpan,
    DeviceType,
    Event,
    Group,
    Place,
    Plan,
    Tensor,
    order_after,
)
from tensorplug_simt.device import SimtDevice
from tensorplug_simt.merging import Placed
from tensorplug_simt.placing import place
from tensorplug_simt.plan import SimtPlan


class SimtBackend(Backend):
    """A stream that queues launches: those of a node, of a group, and of a plan alike."""

    device: SimtDevice
    plan_class: ClassVar[type[Plan]] = SimtPlan

    def __init__(self, device: SimtDevice) -> None:
        super().__init__(device)
        self.prefers_f16 = device.type is not DeviceType.CPU

    def _compute(self, node: Tensor, bindings: Bindings) -> None:
        self._launch(node, place(self.device, node, bindings))

    def _compute_group(self, group: Group, bindings: Bindings) -> None:
        self._launch(group, place(self.device, group, bindings))

    def _launch(self, work: Tensor | Group, placed: Sequence[Placed]) -> None:
        """Queue the launches of `work`, each on its own."""
        self.enqueue(self.ready([(part,) for part in placed]))

    @abstractmethod
    def ready(self, launches: Sequence[Sequence[Placed]]) -> Sequence[Any]:
        """What the driver needs for launches, each of one or several parts: see `joined`."""

    @abstractmethod
    def enqueue(self, launches: Sequence[Any]) -> None:
        """Queue launches that are `ready`, any number of times."""


class Clock(Protocol):
    """Times queued work."""

    def take(self) -> Sequence[DeviceSpan]:
        """The spans of work that is done, each once."""


class QueuedBackend(SimtBackend):
    """A stream whose work runs in the order in which it was queued, while the host goes on.

    It has asynchronous transfers, events and profiles. A backend writes a method for each that
    queues one thing, and wraps it in its driver's errors.
    """

    event_class: ClassVar[type[Event]]
    """Its events, which streams of other devices may wait for where `accepts` says so."""

    def __init__(self, device: SimtDevice) -> None:
        self._clock: Clock | None = None
        self._held: deque[tuple[Event, memoryview]] = deque()
        self._holding = threading.RLock()
        super().__init__(device)

    # --- timing ----------------------------------------------------------------------------

    @property
    def profile(self) -> bool:
        """Whether work queued from now on is timed, launch by launch, which makes it slower."""
        return self._clock is not None

    @profile.setter
    def profile(self, wanted: bool) -> None:
        if wanted != self.profile:
            self.drain()
            self._clock = self._new_clock(wanted=wanted)

    @abstractmethod
    def _new_clock(self, *, wanted: bool) -> Clock | None:
        """A clock that begins now, or None where work is no longer timed. Nothing is queued."""

    def take_spans(self) -> Sequence[DeviceSpan]:
        """What was timed since the last call; all of it has been waited for."""
        return self._clock.take() if self._clock is not None else ()

    # --- transfers -------------------------------------------------------------------------

    def write_async(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        """Queue a copy of host bytes to `offset` of `buffer`."""
        buffer._check(offset, data.nbytes, "write")
        self.device.need_writeable(buffer)
        if not data.nbytes:
            return
        if self._moves(buffer, offset, data.nbytes):
            self._queue_write(buffer, offset, data)
        else:
            self.synchronize()
            buffer.write(offset, data)

    def read_async(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        """Queue a copy from `offset` of `buffer` to host bytes."""
        buffer._check(offset, out.nbytes, "read")
        if not out.nbytes:
            return
        if self._moves(buffer, offset, out.nbytes):
            self._queue_read(buffer, offset, out)
        else:
            self.synchronize()
            buffer.read_into(offset, out)

    def copy_async(self, source: Backend, start: Place, target: Place, size: int) -> bool:
        """Queue a copy that starts after all work queued on `source`; False where it cannot."""
        if not isinstance(source, type(self)) or not self._can_copy(source, start, target, size):
            return False
        start.buffer._check(start.offset, size, "copy")
        target.buffer._check(target.offset, size, "copy")
        self.device.need_writeable(target.buffer)
        order_after(source, self)
        self._queue_copy(start, target, size)
        return True

    def _moves(self, buffer: Buffer, offset: int, size: int) -> bool:
        """Whether the queue transfers these bytes; else the host does when all work is done."""
        return self.device.reaches(buffer)

    def _can_copy(self, source: Backend, start: Place, target: Place, size: int) -> bool:
        """Whether the queue copies from memory of `source` to `target`."""
        return self.device.reaches(start.buffer) and self.device.reaches(target.buffer)

    @abstractmethod
    def _queue_write(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        """Queue a copy of at least one byte, which `_moves`."""

    @abstractmethod
    def _queue_read(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        """Queue a copy of at least one byte, which `_moves`."""

    @abstractmethod
    def _queue_copy(self, start: Place, target: Place, size: int) -> None:
        """Queue a copy that `_can_copy` let pass, of checked bytes."""

    def _hold(self, over: Event, data: memoryview) -> None:
        """Keep host memory until its transfer is over."""
        with self._holding:
            while self._held and self._held[0][0].done:
                self._held.popleft()
            self._held.append((over, data))

    @contextmanager
    def _giving_up_held(self) -> Iterator[None]:
        """Wait for all work inside: what is held by now is given up after it."""
        # Any thread may wait, while others queue transfers and hold their memory.
        with self._holding:
            held, self._held = self._held, deque()
        yield
        held.clear()

    # --- events ----------------------------------------------------------------------------

    def accepts(self, event: Event) -> bool:
        """Whether `wait` can order this stream after `event`."""
        return isinstance(event, self.event_class)

    def wait(self, event: Event) -> None:
        """Start work queued from now on after `event`."""
        if not isinstance(event, self.event_class):
            raise DeviceError(f"{self.name}: cannot wait for {event!r} of another kind")
        self._wait(event)

    @abstractmethod
    def record(self) -> Event:
        """Mark all work queued so far."""

    @abstractmethod
    def _wait(self, event: Event) -> None:
        """Order later work after an event of `event_class`."""
