"""`MetalBackend`: a stream of a GPU."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import Metal
import numpy as np

from tensorplug.device import Backend, Buffer, DeviceSpan, Event, Group, Option, Place, Tensor
from tensorplug.planning.stages import AHEAD
from tensorplug_metal.capture import Capture
from tensorplug_metal.events import MetalEvent, Signals
from tensorplug_metal.launches import Ready, encode, ready
from tensorplug_metal.memory import Spot, Staged, can_copy, can_move, queue_copy, spot, staging
from tensorplug_metal.plan import MetalPlan
from tensorplug_metal.work import WorkQueue
from tensorplug_simt.backend import QueuedBackend
from tensorplug_simt.merging import Placed, merged

if TYPE_CHECKING:
    from tensorplug_metal.device import MetalDevice

COMMAND_BUFFERS = Option(
    "command_buffers",
    int,
    1,
    "command buffers of a run that is not recorded, after a first one",
    choices=tuple(range(1, 9)),
)


class Landing(NamedTuple):
    """Bytes that go to the host once their copy is done."""

    commands: Any
    staged: Staged
    out: memoryview


class Clock:
    """Command buffers of timed work. Metal's clock is that of `time.perf_counter_ns` on macOS."""

    def __init__(self) -> None:
        self.timed: list[tuple[str, Any]] = []

    def take(self) -> list[DeviceSpan]:
        """The spans of what is done, each once."""
        completed = Metal.MTLCommandBufferStatusCompleted
        timed, self.timed = self.timed, []
        self.timed = [(name, each) for name, each in timed if each.status() < completed]
        return [
            DeviceSpan(name, round(each.GPUStartTime() * 1e9), round(each.GPUEndTime() * 1e9))
            for name, each in timed
            if each.status() == completed
        ]


class MetalBackend(QueuedBackend):
    """A command queue.

    Once the GPU has failed in the middle of work, the stream takes no more; a new one does.
    """

    device: "MetalDevice"
    plan_class = MetalPlan
    event_class = MetalEvent
    _clock: Clock | None
    ahead = AHEAD
    abort_callback: Callable[[], bool] | None = None
    """Asked before every 64 launches, when all but the 64 before are done."""

    def __init__(self, device: "MetalDevice", options: dict[str, Any]) -> None:
        self.work = WorkQueue(device, device.name)
        self.concurrent: bool = options["concurrent"]
        """Whether plans made from now on run launches at the same time that need no barrier."""
        self.ahead = AHEAD if self.concurrent else 0
        self.indirect: bool = options["indirect"]
        """Whether plans are recorded when they run again."""
        self._command_buffers: int = options["command_buffers"]
        self.signals = Signals(device, self.work)
        self._landings: deque[Landing] = deque()
        self._landing = threading.RLock()
        self._capture: Capture | None = None
        # Whole before other threads may wait for it.
        super().__init__(device)

    @property
    def command_buffers(self) -> int:
        """How many command buffers a plan's launches are encoded into, 1 to 8.

        A first one, with 64 launches or a tenth of them, comes before these: the GPU has it while
        the others are encoded. Raises OptionError.
        """
        return self._command_buffers

    @command_buffers.setter
    def command_buffers(self, count: int) -> None:
        self._command_buffers = COMMAND_BUFFERS.parse(count, self.name)

    # --- looking on ------------------------------------------------------------------------

    def capture_next(self, path: str) -> None:
        """Write the next run of a plan to `path`, a `.gputrace` for Xcode. Raises Unsupported."""
        self._capture = Capture(self.work.handle, path)

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Run what is inside in the capture that was asked for, if one was."""
        capture, self._capture = self._capture, None
        if capture is None:
            yield
            return
        with capture:
            yield
            self.drain()

    def _new_clock(self, *, wanted: bool) -> Clock | None:
        return Clock() if wanted else None

    @contextmanager
    def queueing(self, name: str) -> Iterator[Any]:
        """A command buffer that is committed at the end, and timed where the stream is profiled."""
        with self.work.commands(name) as commands:
            yield commands
        if self._clock is not None:
            self._clock.timed.append((name, commands))

    # --- work ------------------------------------------------------------------------------

    def _launch(self, work: Tensor | Group, placed: Sequence[Placed]) -> None:
        self.enqueue(self.ready(merged(placed)), str(work))

    def ready(self, launches: Sequence[Sequence[Placed]]) -> Sequence[Ready]:
        return ready(self.device, launches, concurrent=self.concurrent)

    def enqueue(self, launches: Sequence[Ready], label: str = "graph") -> None:
        with self.queueing(label) as commands, self.work.compute(commands) as encoder:
            encode(encoder, launches)

    def _synchronize(self) -> None:
        self.signals.settle()
        try:
            self.work.finish()
        finally:
            self._land()

    def _has_failed(self) -> bool:
        return self.work.has_failed

    def _close(self) -> None:
        self._landings.clear()

    # --- transfers -------------------------------------------------------------------------

    def _moves(self, buffer: Buffer, offset: int, size: int) -> bool:
        # The GPU moves bytes where it can, and it is busy or the host cannot.
        if not self.device.reaches(buffer) or not can_move(buffer, offset, size):
            return False
        return not self.work.idle or not buffer.type.is_host

    def _queue_write(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        staged = staging(self.device, data.nbytes)
        staged.memory[:] = data
        self._copy(staged.spot, spot(buffer, offset, data.nbytes), data.nbytes)

    def _queue_read(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        staged = staging(self.device, out.nbytes)
        commands = self._copy(spot(buffer, offset, out.nbytes), staged.spot, out.nbytes)
        self._landings.append(Landing(commands, staged, out))

    def _can_copy(self, source: Backend, start: Place, target: Place, size: int) -> bool:
        if source.device is not self.device or not size:
            return False
        return can_copy(start.buffer, start.offset, target.buffer, target.offset, size)

    def _queue_copy(self, start: Place, target: Place, size: int) -> None:
        there, here = (spot(place.buffer, place.offset, size) for place in (start, target))
        self._copy(there, here, size)

    def _copy(self, source: Spot, target: Spot, size: int) -> Any:
        with self.queueing("copy") as commands, self.work.blit(commands) as encoder:
            queue_copy(encoder, source, target, size)
        return commands

    def _land(self) -> None:
        """Give the host the bytes of copies that are done."""
        with self._landing:
            while self._landings:
                landing = self._landings[0]
                if landing.commands.status() < Metal.MTLCommandBufferStatusCompleted:
                    return
                # The collector of garbage may have come here meanwhile, and given it.
                if self._landings and self._landings[0] is landing:
                    self._landings.popleft()
                    np.frombuffer(landing.out, np.uint8)[:] = landing.staged.memory

    # --- events ----------------------------------------------------------------------------

    def record(self) -> Event:
        """Mark all work queued so far."""
        return self.signals.record(self._land)

    def _wait(self, event: Event) -> None:
        self.signals.wait(cast("MetalEvent", event))
