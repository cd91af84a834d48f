"""Events: marks in a stream that the host and other streams wait for."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import Metal

from tensorplug.device import Event
from tensorplug_metal.errors import failure

if TYPE_CHECKING:
    from tensorplug_metal.device import MetalDevice
    from tensorplug_metal.work import WorkQueue


class MetalEvent(Event):
    """A command buffer, and the number that it gives a shared event at its end.

    The host waits for the one and other queues for the other. Without a command buffer there was
    nothing to wait for. `land` gives the host the bytes that were queued to be read before.
    """

    def __init__(
        self, commands: Any, shared: Any, value: int, name: str, land: Callable[[], None]
    ) -> None:
        self.commands = commands
        self.shared = shared
        self.value = value
        self._name = name
        self._land = land

    def synchronize(self) -> None:
        if self.commands is None:
            return
        self.commands.waitUntilCompleted()
        self._land()
        error = failure(self.commands, f"{self._name}: event")
        if error is not None:
            raise error

    @property
    def done(self) -> bool:
        if self.commands is None:
            return True
        if self.commands.status() < Metal.MTLCommandBufferStatusCompleted:
            return False
        self._land()
        return True

    def settle(self) -> None:
        """Wait for the mark, and let go of who waits for it where its work has failed."""
        if self.commands is None:
            return
        self.commands.waitUntilCompleted()
        if self.shared.signaledValue() < self.value:
            self.shared.setSignaledValue_(self.value)


class Signals:
    """The events of one stream, and those that it waits for."""

    def __init__(self, device: "MetalDevice", work: "WorkQueue") -> None:
        self._shared = device.handle.newSharedEvent()
        self._work = work
        self._value = 0
        self._awaited: list[MetalEvent] = []
        # The collector of garbage may wait for the stream at any moment.
        self._lock = threading.RLock()

    def record(self, land: Callable[[], None]) -> MetalEvent:
        """Mark all work queued so far."""
        name = self._work.label
        if self._work.idle:
            return MetalEvent(None, self._shared, 0, name, land)
        with self._work.commands("event") as commands:
            self._value += 1
            commands.encodeSignalEvent_value_(self._shared, self._value)
        return MetalEvent(commands, self._shared, self._value, name, land)

    def wait(self, event: MetalEvent) -> None:
        """Start later work after an event of any stream."""
        if event.shared is self._shared or event.done:
            return
        with self._work.commands("wait") as commands:
            commands.encodeWaitForEvent_value_(event.shared, event.value)
        with self._lock:
            self._awaited.append(event)

    def settle(self) -> None:
        """Wait for the events that this stream waits for, so that it cannot wait in vain."""
        with self._lock:
            awaited, self._awaited = self._awaited, []
        for event in awaited:
            event.settle()
