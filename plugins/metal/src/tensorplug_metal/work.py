"""`WorkQueue`: a command queue of Metal's, in order, with the state of its command buffers."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import Metal
import objc

from tensorplug.device import DeviceError, TensorplugError
from tensorplug_metal.errors import failure

if TYPE_CHECKING:
    from tensorplug_metal.device import MetalDevice

MANY = 32
"""With more command buffers than this in memory, those that are done are removed."""


class WorkQueue:
    """Command buffers that run in order. Once one has failed, nothing more is queued.

    Metal orders encoders by the buffers that they use. Two of its buffers may lie over the same
    memory, which it cannot see, so a fence orders all encoders of a queue.
    """

    def __init__(self, device: "MetalDevice", label: str) -> None:
        self.label = label
        self.handle = device.handle.newCommandQueue()
        self.handle.setLabel_(f"tensorplug {label}")
        device.residency.attach(self.handle)
        self._fence = device.handle.newFence()
        self._flying: deque[Any] = deque()
        self._lock = threading.RLock()
        self._failed = ""

    @property
    def idle(self) -> bool:
        """Whether all that was queued is known to be done."""
        return not self._flying

    @property
    def has_failed(self) -> bool:
        """Whether work that was not waited for yet has failed."""
        failing = Metal.MTLCommandBufferStatusError
        with self._lock:
            return any(commands.status() == failing for commands in self._flying)

    def check(self) -> None:
        """Raise DeviceError where a command buffer has failed before."""
        if self._failed:
            raise DeviceError(
                f"{self.label}: takes no more work, because a command buffer failed "
                f"({self._failed}); open another stream"
            )

    @contextmanager
    def commands(self, label: str) -> Iterator[Any]:
        """A command buffer that is committed at the end, unless an error comes out."""
        self.check()
        with objc.autorelease_pool():
            commands = self.handle.commandBuffer()
            if commands is None:
                raise DeviceError(f"{self.label}: {label}: Metal makes no command buffer")
            commands.setLabel_(label)
            yield commands
            with self._lock:
                commands.commit()
                self._flying.append(commands)
                if len(self._flying) > MANY:
                    self._forget_done()

    @contextmanager
    def compute(self, commands: Any) -> Iterator[Any]:
        """An encoder of dispatches; those that no barrier divides may run at the same time."""
        kind = Metal.MTLDispatchTypeConcurrent
        with self._encoding(commands.computeCommandEncoderWithDispatchType_(kind)) as encoder:
            yield encoder

    @contextmanager
    def blit(self, commands: Any) -> Iterator[Any]:
        """An encoder of copies and fills."""
        with self._encoding(commands.blitCommandEncoder()) as encoder:
            yield encoder

    @contextmanager
    def _encoding(self, encoder: Any) -> Iterator[Any]:
        encoder.waitForFence_(self._fence)
        try:
            yield encoder
            encoder.updateFence_(self._fence)
        finally:
            # Metal stops the process where an encoder goes without an end.
            encoder.endEncoding()

    def finish(self) -> None:
        """Wait for all work. Raises the first error of it, once: later work has rubbish to read."""
        with self._lock:
            waited = list(self._flying)
        for commands in waited:
            commands.waitUntilCompleted()
        with self._lock:
            found = self._errors(waited)
            for commands in waited:
                if commands in self._flying:
                    self._flying.remove(commands)
        if found:
            raise found[0]

    def _errors(self, commands: list[Any]) -> list[TensorplugError]:
        """What went wrong with command buffers that are done."""
        found = [error for each in commands if (error := failure(each, self.label))]
        if found:
            self._failed = self._failed or str(found[0]).removeprefix(f"{self.label}: ")
        return found

    def _forget_done(self) -> None:
        """Forget what is done and went well."""
        while self._flying and self._flying[0].status() == Metal.MTLCommandBufferStatusCompleted:
            self._flying.popleft()
