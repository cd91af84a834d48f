"""Streams, plans and events: commands gather here, and travel when the caller waits for them."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from tensorplug.device import (
    Array,
    Backend,
    Bindings,
    Buffer,
    Event,
    Part,
    Place,
    Plan,
    Rounding,
    Tensor,
    as_bytes,
)
from tensorplug.device.wire import pack_part, pack_places
from tensorplug.errors import TensorplugError, Unsupported
from tensorplug_ray.link import LOCK, Link, Need, is_ready, next_number, typed
from tensorplug_ray.memory import RayBuffer
from tensorplug_ray.worker import Command, packed

if TYPE_CHECKING:
    from tensorplug_ray.device import RayDevice

TICK = 0.02
"""Seconds after which commands are sent although no caller waits for them."""
PIECE = 1 << 30
"""Bytes of a write, of which msgpack packs 4 GiB at most."""


class RayPlan(Plan):
    """A part that was sent to the actor once."""

    backend: "RayBackend"

    def __init__(self, backend: "RayBackend", bound: Part) -> None:
        self.number = next_number()
        self._sent = bound.bind(Bindings())  # its memory may be closed
        data = pack_part(bound, backend.device.number)
        backend.device.link.call("plan", self.number, backend.number, data)
        super().__init__(backend, bound)

    def _run(self) -> None:
        self.backend.queue("run", self.number)

    def _rebind(self) -> None:
        link, number = self.backend.device.link, self.backend.device.number
        self.backend.flush()
        if self.bound.same_tensors(self._sent):
            link.call("move", self.number, pack_places(self.bound, number))
        else:
            link.call("rebind", self.number, pack_part(self.bound, number))
            self._sent = self.bound.bind(Bindings())

    def _close(self) -> None:
        self.backend.device.link.cast("drop", self.number)


def _number(buffer: Buffer) -> int:
    if not isinstance(buffer, RayBuffer):
        raise Unsupported(f"{buffer!r}: an actor cannot reach this memory")
    return buffer.number


class RayEvent(Event):
    """The answer of the call that waits for everything queued before it."""

    def __init__(self, stream: "RayBackend", reference: Any) -> None:
        self.stream = stream
        self.reference = reference

    @property
    def link(self) -> Link:
        """The link of the stream."""
        return self.stream.device.link

    def take(self) -> Any:
        """The reference."""
        return self.reference

    def synchronize(self) -> None:
        if self.reference is not None:
            self.stream.settle(self.reference)

    @property
    def done(self) -> bool:
        if self.reference is not None:
            if not is_ready(self.reference):
                return False
            self.synchronize()
        return True


class Parcel:
    """Bytes that a stream sends to another: a reference once the call that sends is made."""

    def __init__(self, stream: "RayBackend") -> None:
        self._stream = stream
        self.reference: Any = None

    @property
    def link(self) -> Link:
        """The link of the sender."""
        return self._stream.device.link

    def take(self) -> Any:
        """The reference; the sender's commands are sent first."""
        if self.reference is None:
            self._stream.flush()
        return self.reference


class _Flight(NamedTuple):
    """A call that is not answered yet, the host memory for what it reads, and what it waits for."""

    reference: Any
    outs: Sequence[memoryview]
    needs: Sequence[Need]

    def take(self, answer: bytes | Sequence[Array]) -> None:
        """Fill the host memory with what was read."""
        if isinstance(answer, bytes):
            start = 0
            for out in self.outs:
                out[:] = answer[start : start + out.nbytes]
                start += out.nbytes
        else:
            for out, data in zip(self.outs, answer, strict=True):
                out[:] = as_bytes(data)


class RayBackend(Backend):
    """A stream of the actor's device. All commands between two waits are one call."""

    device: "RayDevice"
    plan_class = RayPlan
    holds_sources = False

    def __init__(self, device: "RayDevice") -> None:
        self.prefers_f16 = device.facts["prefers_f16"]
        self.number = next_number()
        self._commands: list[Command] = []
        self._arguments: list[Parcel | RayEvent] = []
        self._outs: list[memoryview] = []
        self._parcels: list[Parcel] = []
        self._flying: deque[_Flight] = deque()
        self._settling = threading.RLock()
        self._last: Any = None
        self._synced = True
        self._marked = True
        self._error: TensorplugError | None = None
        device.link.call("open_stream", self.number)
        super().__init__(device)

    def rounding(self, node: Tensor) -> Rounding:
        return self.device.rounding(node)

    # --- queueing --------------------------------------------------------------------------

    def queue(self, *command: Any) -> None:
        """Add a command. Raises DeviceLost."""
        self.device.link.check()
        with LOCK:
            self._commands.append(command)
            self._synced = self._marked = False
        FLUSHER.watch(self)

    def flush(self) -> None:
        """Send the commands that wait."""
        with LOCK:
            if not self._commands:
                return
            commands, self._commands = self._commands, []
            arguments, self._arguments = self._arguments, []
            outs, self._outs = self._outs, []
            parcels, self._parcels = self._parcels, []
            try:
                needs = [(argument.take(), argument.link) for argument in arguments]
                self._send(commands, needs, outs, parcels)
            except Exception as error:  # noqa: BLE001 - the thread that sends late work goes on
                self._error = self._error or typed(self.device.name, error)

    def _send(
        self,
        commands: Sequence[Command],
        needs: Sequence[Need],
        outs: Sequence[memoryview],
        parcels: Sequence[Parcel],
    ) -> None:
        link = self.device.link
        link.check()
        given = (reference for reference, _ in needs)
        sends = len(parcels)
        order = packed(self.number, commands, sends)
        made = link.send("do", order, *given, values=1 + sends)
        self._last, *sent = made if sends else [made]
        made_by_others = [need for need in needs if need[0] is not None]
        self._flying.append(_Flight(self._last, outs, made_by_others))
        for parcel, reference in zip(parcels, sent, strict=True):
            parcel.reference = reference

    def settle(self, until: Any = None) -> None:
        """Wait for the answers up to that of the reference `until`, and keep their error."""
        with self._settling:
            while self._flying:
                flight = self._flying[0]
                try:
                    (answer,) = self.device.link.wait([flight.reference], flight.needs)
                    flight.take(answer)
                except Exception as error:  # noqa: BLE001 - a flight that failed must not stay
                    self._error = self._error or typed(self.device.name, error)
                self._flying.popleft()
                if flight.reference is until:
                    return

    def _synchronize(self) -> None:
        with LOCK:
            if not self._synced:
                self._commands.append(("sync",))
                self._synced = self._marked = True
            self.flush()
        self.settle()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _has_failed(self) -> bool:
        return self._error is not None

    def _compute(self, node: Tensor, bindings: Bindings) -> None:
        raise Unsupported(f"{self.name}: {node}: only whole parts are sent")

    # --- transfers -------------------------------------------------------------------------

    def write_async(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        """Queue a copy of host bytes, which may change afterwards."""
        if data.nbytes:
            buffer._check(offset, data.nbytes, "write")
            for start in range(0, data.nbytes, PIECE):
                piece = bytes(data[start : start + PIECE])
                self.queue("write", _number(buffer), offset + start, piece)

    def read_async(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        """Queue a copy to host bytes, which are filled when the answer is waited for."""
        if out.nbytes:
            buffer._check(offset, out.nbytes, "read")
            with LOCK:
                self.queue("read", _number(buffer), offset, out.nbytes)
                self._outs.append(out)

    def copy_async(self, source: Backend, start: Place, target: Place, size: int) -> bool:
        """Queue a copy from a stream of any actor."""
        if not isinstance(source, RayBackend):
            return False
        a, b = start.buffer, target.buffer
        if not isinstance(a, RayBuffer) or not isinstance(b, RayBuffer):
            return False
        if a.link is not source.device.link or b.link is not self.device.link:
            return False
        a._check(start.offset, size, "copy")
        b._check(target.offset, size, "copy")
        if not size:
            return True
        if a.link is b.link:
            if source is not self:
                source.flush()
            ends = (a.number, start.offset, b.number, target.offset)
            self.queue("copy", source.number, *ends, size)
            return True
        with LOCK:
            parcel = Parcel(source)
            source.queue("send", a.number, start.offset, size)
            source._parcels.append(parcel)
            if self._parcels:
                self.flush()  # what others wait for goes before what waits for others
            self.queue("receive", b.number, target.offset, size, len(self._arguments))
            self._arguments.append(parcel)
        return True

    # --- events ----------------------------------------------------------------------------

    def record(self) -> Event:
        """Return an event; the commands so far are sent, and the actor waits for their work."""
        with LOCK:
            if not self._marked:
                self._commands.append(("mark",))
                self._marked = True
            self.flush()
            return RayEvent(self, self._last)

    def accepts(self, event: Event) -> bool:
        """True for events of any actor of the cluster."""
        return isinstance(event, RayEvent)

    def wait(self, event: Event) -> None:
        """Let the next call of this stream begin after `event`."""
        if not isinstance(event, RayEvent):
            raise Unsupported(f"{self.name}: cannot wait for {event!r}")
        if event.reference is None or event.link is self.device.link:
            return  # an actor does its calls one after the other
        with LOCK:
            self.flush()
            self._arguments.append(event)

    def _close(self) -> None:
        self.device.link.cast("close_stream", self.number)


class _Flusher:
    """Sends commands for which no caller waited within a tick, in a thread of its own."""

    def __init__(self) -> None:
        self._streams: WeakSet[RayBackend] = WeakSet()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, stream: RayBackend) -> None:
        """Send what `stream` has queued after a tick, unless it was sent earlier."""
        with LOCK:
            self._streams.add(stream)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="ray flush", daemon=True)
                self._thread.start()
        if not self._wake.is_set():
            self._wake.set()

    def _loop(self) -> None:
        while self._wake.wait():
            self._wake.clear()
            time.sleep(TICK)
            self._flush()

    def _flush(self) -> None:
        """Send now. A call of its own: between ticks the thread must keep no stream alive."""
        with LOCK:
            streams, self._streams = self._streams, WeakSet()
            for stream in streams:
                stream.flush()


FLUSHER = _Flusher()
