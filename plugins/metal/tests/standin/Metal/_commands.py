"""Queues, command buffers, events and fences: what waits for what, and when work is done."""

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from Metal._encoders import BlitEncoder, ComputeEncoder
from Metal._machine import Gpu, GpuError, NSError, machine, need

NOT_ENQUEUED, ENQUEUED, COMMITTED, SCHEDULED, COMPLETED, ERROR = range(6)
MOST_UNFINISHED = 64
DOMAIN = "MTLCommandBufferErrorDomain"
_clock = count(1)


class Fence:
    """MTLFence: what an encoder comes after."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.reached: set[int] = set()


class SharedEvent:
    """MTLSharedEvent: a number that only grows."""

    def __init__(self) -> None:
        self._value = 0

    def signaledValue(self) -> int:
        return self._value

    def setSignaledValue_(self, value: int) -> None:
        need(value >= self._value, "an event goes back")
        self._value = value


class CommandBuffer:
    """MTLCommandBuffer."""

    def __init__(self, queue: "Queue") -> None:
        machine.short_lived("a command buffer")
        self.queue = queue
        self.state = NOT_ENQUEUED
        self.encoder: Any = None
        self.steps: deque[Callable[[], None]] = deque()
        self.signals: list[tuple[SharedEvent, int]] = []
        self.has_work = False
        self._error: NSError | None = None
        self._times = (0, 0)
        self._label = ""

    # --- what is encoded -------------------------------------------------------------------

    def computeCommandEncoder(self) -> ComputeEncoder:
        return self.computeCommandEncoderWithDispatchType_(0)

    def computeCommandEncoderWithDispatchType_(self, kind: int) -> ComputeEncoder:
        self._begin()
        machine.short_lived("an encoder")
        self.encoder = ComputeEncoder(self, concurrent=kind == 1)
        return self.encoder

    def blitCommandEncoder(self) -> BlitEncoder:
        self._begin()
        machine.short_lived("an encoder")
        self.encoder = BlitEncoder(self)
        return self.encoder

    def encodeSignalEvent_value_(self, event: SharedEvent, value: int) -> None:
        self._begin()
        self.signals.append((event, value))
        self.steps.append(lambda: event.setSignaledValue_(max(value, event.signaledValue())))

    def encodeWaitForEvent_value_(self, event: SharedEvent, value: int) -> None:
        self._begin()
        self.steps.append(lambda: reach(event, value))

    def _begin(self) -> None:
        need(self.state < COMMITTED, "a command buffer that is committed takes no more work")
        need(self.encoder is None, "an encoder of this command buffer has not ended")

    def ended(self, work: Callable[[], None]) -> None:
        """An encoder has ended: its work is a step of this command buffer."""
        self.encoder = None
        self.has_work = True
        self.steps.append(work)

    # --- its life --------------------------------------------------------------------------

    def enqueue(self) -> None:
        need(self.state == NOT_ENQUEUED, "a command buffer is enqueued twice")
        self.state = ENQUEUED
        self.queue.order.append(self)

    def commit(self) -> None:
        with machine.lock:
            need(self.state < COMMITTED, "a command buffer is committed twice")
            need(self.encoder is None, "a command buffer is committed with an unfinished encoder")
            if self.state == NOT_ENQUEUED:
                self.enqueue()
            self.state = COMMITTED
            machine.commits += 1

    def waitUntilCompleted(self) -> None:
        with machine.lock:
            need(self.state >= COMMITTED, "waiting for what was not committed never ends")
            machine.waits += 1
            self.queue.finish(self)

    def waitUntilScheduled(self) -> None:
        need(self.state >= COMMITTED, "waiting for what was not committed never ends")

    def status(self) -> int:
        """The state. A call also does one step of the queue's work, unless a step makes the call.

        A step can collect garbage, whose finalizers ask for the state.
        """
        with machine.lock:
            if COMMITTED <= self.state < COMPLETED and not self.queue.stepping:
                self.queue.step()
            return self.state

    def error(self) -> NSError | None:
        need(self.state >= COMPLETED, "the error of a command buffer that is not done")
        return self._error

    def GPUStartTime(self) -> float:
        need(self.state >= COMPLETED, "the times of a command buffer that is not done")
        return self._times[0] * 1e-6

    def GPUEndTime(self) -> float:
        need(self.state >= COMPLETED, "the times of a command buffer that is not done")
        return self._times[1] * 1e-6

    def setLabel_(self, label: str) -> None:
        self._label = label

    def label(self) -> str:
        return self._label

    def step(self) -> bool:
        """Do a part of the work; whether that was the end of it."""
        start = next(_clock)
        try:
            if machine.fail_next and self.has_work:
                code, machine.fail_next = machine.fail_next, 0
                raise GpuError(code, "as the test asked for")
            if self.steps:
                self.steps.popleft()()
        except GpuError as error:
            # What is left is not done, the signals among it.
            self._error = NSError(DOMAIN, error.code, str(error))
            self.steps.clear()
        self._times = (self._times[0] or start, next(_clock))
        if not self.steps:
            self.state = ERROR if self._error else COMPLETED
        return self.state >= COMPLETED


class Queue:
    """MTLCommandQueue: command buffers in the order in which they were enqueued."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.order: deque[CommandBuffer] = deque()
        self.stepping = False
        self.made: list[CommandBuffer] = []
        self.residency: list[Any] = []
        self.recent: list[Any] = []
        """Numbers of the encoders whose work was done last, and the buffers that they used."""
        self._label = ""
        machine.queues.add(self)

    def commandBuffer(self) -> CommandBuffer | None:
        with machine.lock:
            if machine.no_buffers:
                machine.no_buffers -= 1
                return None
            self.made = [known for known in self.made if known.state < COMPLETED]
            if len(self.made) >= MOST_UNFINISHED:
                oldest = self.made[0]
                need(oldest.state >= COMMITTED, f"all {MOST_UNFINISHED} command buffers are taken")
                self.finish(oldest)
            self.made.append(CommandBuffer(self))
            return self.made[-1]

    def addResidencySet_(self, residency: Any) -> None:
        self.residency.append(residency)

    def removeResidencySet_(self, residency: Any) -> None:
        self.residency.remove(residency)

    def setLabel_(self, label: str) -> None:
        self._label = label

    def step(self) -> None:
        """Do a part of the first work that is not done."""
        while self.order and self.order[0].state >= COMPLETED:
            self.order.popleft()
        if self.order and self.order[0].state >= COMMITTED:
            outer, self.stepping = self.stepping, True
            try:
                self.order[0].step()
            finally:
                self.stepping = outer

    def finish(self, last: CommandBuffer) -> None:
        """Do everything up to `last`."""
        while last.state < COMPLETED:
            need(self.order[0].state >= COMMITTED, "an earlier command buffer is never committed")
            self.step()


def reach(event: SharedEvent, value: int) -> None:
    """Do what other queues have to do before an event is at `value`."""
    for queue in list(machine.queues):
        for buffer in list(queue.order):
            promised = any(e is event and v >= value for e, v in buffer.signals)
            if event.signaledValue() < value and promised and buffer.state >= COMMITTED:
                queue.finish(buffer)
    if event.signaledValue() < value:
        raise GpuError(2, f"waited in vain for an event to be at {value}")
