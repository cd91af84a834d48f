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
    """A command buffer, and the number that it gives its stream's shared event at its end.

    The host waits for the command buffer, other queues wait for the number. Without a command
    buffer there was nothing to wait for. `land` gives the host the bytes of reads queued before.
    """

    def __init__(
        self, commands: Any, signals: "Signals", value: int, land: Callable[[], None]
    ) -> None:
        self.commands = commands
        self.signals = signals
        self.value = value
        self._land = land

    def synchronize(self) -> None:
        if self.commands is None:
            return
        self.settle()
        self._land()
        error = failure(self.commands, f"{self.signals.label}: event")
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
        """Wait for the mark; where its work has failed, release the queues that wait for it."""
        if self.commands is None:
            return
        self.signals.settle()
        self.commands.waitUntilCompleted()
        shared = self.signals.shared
        if shared.signaledValue() < self.value:
            shared.setSignaledValue_(self.value)


class Signals:
    """The events of one stream, and those that it waits for."""

    def __init__(self, device: "MetalDevice", work: "WorkQueue") -> None:
        self.shared = device.handle.newSharedEvent()
        self.label = work.label
        self._work = work
        self._value = 0
        self._awaited: list[MetalEvent] = []
        # The collector of garbage may wait for the stream at any moment.
        self._lock = threading.RLock()

    def record(self, land: Callable[[], None]) -> MetalEvent:
        """Mark all work queued so far."""
        if self._work.idle:
            return MetalEvent(None, self, 0, land)
        with self._work.commands("event") as commands:
            self._value += 1
            commands.encodeSignalEvent_value_(self.shared, self._value)
        return MetalEvent(commands, self, self._value, land)

    def wait(self, event: MetalEvent) -> None:
        """Start later work after an event of any stream."""
        if event.signals is self or event.done:
            return
        with self._work.commands("wait") as commands:
            commands.encodeWaitForEvent_value_(event.signals.shared, event.value)
        with self._lock:
            self._awaited.append(event)

    def settle(self) -> None:
        """Wait for the events that this stream waits for, so that it cannot wait in vain.

        A stream that has failed never gives them: without this, a wait for a command buffer behind
        one of them would last for ever.
        """
        with self._lock:
            awaited, self._awaited = self._awaited, []
        for event in awaited:
            event.settle()
