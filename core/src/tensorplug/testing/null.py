"""`NullDevice`: a fake device with memory of its own, a limit on it, faults and late streams."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tensorplug.backend import Backend, Event, Plan
from tensorplug.buffer import Buffer, BufferType, BufferUsage
from tensorplug.device import Device, DeviceType, Memory
from tensorplug.errors import (
    DeviceError,
    DeviceLost,
    OutOfMemory,
    Refusal,
    TensorplugError,
    Unsupported,
)
from tensorplug.graph import Bindings, BoundGraph
from tensorplug.tensor import Array, Storage, Tensor, array_view
from tensorplug.testing.arithmetic import KERNELS, Kernel
from tensorplug.testing.timeline import NullEvent, Timeline

FAULTS = ("alloc", "write", "read", "copy", "compute")


class Entry(NamedTuple):
    """One thing a device did: `("compute", "add")`, `("copy", 64)`; sizes are bytes."""

    what: str
    detail: str | int


# --- memory ------------------------------------------------------------------------------------


class NullBufferType(BufferType):
    """Memory of a fake device; fresh memory is all ones: NaN as floats, -1 as integers."""

    device: "NullDevice"

    def __init__(self, device: "NullDevice", *, is_host: bool, max_size: int) -> None:
        super().__init__(device)
        self.name = device.name
        self.is_host = is_host
        self.max_size = max_size

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        self.device.take(size)
        return NullBuffer(self, size, usage)


class NullBuffer(Buffer):
    """Bytes that only the device's work and explicit transfers reach, unless the host sees them."""

    type: NullBufferType

    def __init__(self, buffer_type: NullBufferType, size: int, usage: BufferUsage) -> None:
        super().__init__(buffer_type, size, usage)
        self._device = buffer_type.device
        self._memory = np.full(size, 0xFF, np.uint8)

    def host(self) -> Array:
        if not self.type.is_host:
            return super().host()
        self.check_open()
        return self._memory

    def device_memory(self) -> Array:
        """The bytes as the device sees them."""
        return self._memory

    def _write(self, offset: int, data: memoryview) -> None:
        self._device.begin("write", data.nbytes)
        self._memory[offset : offset + data.nbytes] = data

    def _read(self, offset: int, out: memoryview) -> None:
        self._device.begin("read", out.nbytes)
        np.frombuffer(out, np.uint8)[:] = self._memory[offset : offset + out.nbytes]

    def _fill(self, offset: int, size: int, value: int) -> None:
        self._device.begin("write", size)
        self._memory[offset : offset + size] = value

    def _copy_from(self, source: Buffer, start: int, offset: int, size: int) -> bool:
        if not isinstance(source, NullBuffer) or source.type.device is not self._device:
            return False
        self.take_copy(source, start, offset, size)
        return True

    def take_copy(self, source: "NullBuffer", start: int, offset: int, size: int) -> None:
        """Copy bytes from any fake device's memory now."""
        self._device.begin("copy", size)
        self._memory[offset : offset + size] = source._memory[start : start + size]

    def _close(self) -> None:
        # Work that still comes here finds rubbish, as it would on a real device.
        self._memory[...] = 0xFF
        self._device.give(self.size)


# --- streams -----------------------------------------------------------------------------------


class NullBackend(Backend):
    """A stream without optional abilities: at once, or late if its device is asynchronous."""

    device: "NullDevice"

    def __init__(self, device: "NullDevice") -> None:
        super().__init__(device)
        self._stream = device.timeline.stream()

    def queue(self, job: Callable[[], None], after: NullEvent | None = None) -> None:
        """Do `job` in order with the rest and after an event: now, or when somebody waits."""
        self.device.check_alive()
        if self.device.asynchronous:
            self._stream.put(job, after)
            return
        if after is not None:
            after.synchronize()
        job()

    def mark(self) -> NullEvent:
        """An event after all work queued so far."""
        return NullEvent(self._stream, self.device.family)

    def _plan(self, bound: BoundGraph) -> Plan:
        self.device.check_alive()
        return super()._plan(bound)

    def _compute(self, node: Tensor, bindings: Bindings) -> None:
        self.queue(partial(self.device.compute, node, bindings))

    def _synchronize(self) -> None:
        self.device.check_alive()
        self.mark().synchronize()
        error = self._stream.take_error()
        if error is not None:
            raise error

    def _close(self) -> None:
        self.device.timeline.forget(self._stream)


def _nothing() -> None:
    """The job of a stream that only waits."""


class _Events(NullBackend):
    def record(self) -> Event:
        self.device.check_alive()
        return self.mark()

    def accepts(self, event: Event) -> bool:
        return isinstance(event, NullEvent) and event.family == self.device.family

    def wait(self, event: Event) -> None:
        if not self.accepts(event):
            raise Unsupported(f"{self.name}: cannot wait for {event!r} of another kind of device")
        assert isinstance(event, NullEvent)
        self.queue(_nothing, after=event)


class _AsyncTransfer(NullBackend):
    def write_async(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        self.queue(partial(buffer.write, offset, data))

    def read_async(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        self.queue(partial(buffer.read_into, offset, out))


class _AsyncCopy(NullBackend):
    def copy_async(self, source: Backend, start: Storage, target: Storage, size: int) -> bool:
        from_, to = start.buffer, target.buffer
        if not (
            isinstance(source, NullBackend)
            and source.device.family == self.device.family
            and isinstance(from_, NullBuffer)
            and isinstance(to, NullBuffer)
        ):
            return False
        after = None if source is self else source.mark()
        self.queue(partial(to.take_copy, from_, start.offset, target.offset, size), after)
        return True


def _backend_class(*mixins: type[NullBackend]) -> type[NullBackend]:
    return type("NullBackend", (*mixins, NullBackend), {}) if mixins else NullBackend


_ABILITIES = (_Events, _AsyncTransfer, _AsyncCopy)
_BACKENDS = {
    flags: _backend_class(*itertools.compress(_ABILITIES, flags))
    for flags in itertools.product((False, True), repeat=len(_ABILITIES))
}
"""One class for each set of abilities, so that `isinstance` tells the truth about each device."""


# --- the device --------------------------------------------------------------------------------


class NullDevice(Device):
    """A fake device for tests. It computes on NumPy arrays that only it can see.

    `ops` are the ops it says yes to, by default those it has arithmetic for; `kernels` adds to that
    arithmetic or replaces it. `memory` is the limit in bytes, `max_size` that of one buffer; with
    `host` the host sees the memory; `offloads` are the ops that `offload()` says yes to.

    With `asynchronous`, work is done only when somebody waits, in an order that `timeline` decides;
    devices overlap when they share one. Events, asynchronous transfers and copies come with
    `asynchronous` unless told otherwise. Devices whose names agree before the colon understand each
    other's events and copies.
    """

    def __init__(  # noqa: PLR0913 - a test names only what it is about
        self,
        name: str = "null:0",
        *,
        device_type: DeviceType = DeviceType.GPU,
        memory: int = 1 << 30,
        ops: Collection[str] | None = None,
        offloads: Collection[str] = (),
        host: bool = False,
        max_size: int = 1 << 40,
        asynchronous: bool = False,
        events: bool | None = None,
        async_transfer: bool | None = None,
        async_copy: bool | None = None,
        timeline: Timeline | None = None,
        kernels: Mapping[str, Kernel] | None = None,
    ) -> None:
        super().__init__(name)
        wanted = (events, async_transfer, async_copy)
        self.backend_class = _BACKENDS[
            tuple(asynchronous if flag is None else flag for flag in wanted)
        ]
        self.asynchronous = asynchronous
        self.timeline = timeline or Timeline()
        self.log: list[Entry] = []
        self.live_buffers = 0
        self.used = 0
        self._type = device_type
        self._total = memory
        self._kernels = {**KERNELS, **(kernels or {})}
        self._ops = None if ops is None else frozenset(ops)
        self._offloads = frozenset(offloads)
        self._buffer_type = NullBufferType(self, is_host=host, max_size=max_size)
        self._calls: Counter[str] = Counter()
        self._faults: dict[tuple[str, int], TensorplugError] = {}
        self._lost = False
        self._lock = threading.RLock()

    # --- what tests ask and do -------------------------------------------------------------

    @property
    def family(self) -> str:
        """The name before the colon."""
        return self.name.partition(":")[0]

    @property
    def computed(self) -> list[str]:
        """Ops in the order in which they were done."""
        return [str(detail) for what, detail in self.log if what == "compute"]

    def fail(self, what: str, *, at: int = 1, error: TensorplugError | None = None) -> None:
        """Raise `error` at the `at`-th call from now on, once; `what` is one of FAULTS."""
        if what not in FAULTS:
            raise ValueError(f"fail: {what!r} is none of {', '.join(FAULTS)}")
        kind = OutOfMemory if what == "alloc" else DeviceError
        planned = error or kind(f"{self.name}: {what} failed as the test planned")
        self._faults[what, self._calls[what] + at] = planned

    def lose(self) -> None:
        """Be gone: everything but closing raises DeviceLost from now on."""
        self._lost = True

    # --- facts -----------------------------------------------------------------------------

    @property
    def description(self) -> str:
        return "a fake device for tests"

    @property
    def type(self) -> DeviceType:
        return self._type

    def memory(self) -> Memory:
        self.check_alive()
        return Memory(self._total - self.used, self._total)

    @property
    def buffer_type(self) -> NullBufferType:
        return self._buffer_type

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type.device is self or (self._buffer_type.is_host and buffer_type.is_host)

    def offload(self, node: Tensor) -> bool:
        return node.op in self._offloads

    def _supports(self, node: Tensor, source_types: Mapping[Tensor, BufferType]) -> bool | Refusal:
        if self._ops is not None:
            return node.op in self._ops or Refusal(f"{self.name}: does not do {node.op}")
        if node.op not in self._kernels:
            return Refusal(f"{self.name}: no kernel for {node.op}")
        strange = next((t for t in (node, *node.sources) if t.dtype.numpy is None), None)
        if strange is not None:
            return Refusal(f"{self.name}: no kernel for {node.op} with {strange.dtype.name}")
        if node.op == "soft_max" and len(node.sources) > 1:
            return Refusal(f"{self.name}: no kernel for soft_max with a mask")
        return True

    def _open(self, options: dict[str, Any]) -> Backend:
        self.check_alive()
        return self.backend_class(self)

    # --- for its buffers and streams -------------------------------------------------------

    def check_alive(self) -> None:
        """Raise DeviceLost after `lose()`."""
        if self._lost:
            raise DeviceLost(f"{self.name}: the device is gone; open another")

    def begin(self, what: str, detail: str | int) -> None:
        """Count a call, raise what was planned for it, and write it down."""
        with self._lock:
            self.check_alive()
            self._calls[what] += 1
            planned = self._faults.pop((what, self._calls[what]), None)
            if planned is not None:
                raise planned
            self.log.append(Entry(what, detail))

    def take(self, size: int) -> None:
        """Account for a new buffer of `size` bytes."""
        with self._lock:
            free = self._total - self.used
            if size > free:
                raise OutOfMemory(
                    f"{self.name}: no room for a buffer of {size} bytes: {size} needed, {free} of "
                    f"{self._total} available; close other buffers"
                )
            self.begin("alloc", size)
            self.used += size
            self.live_buffers += 1

    def give(self, size: int) -> None:
        """Account for a buffer that was closed."""
        with self._lock:
            self.used -= size
            self.live_buffers -= 1
            self.log.append(Entry("free", size))

    def compute(self, node: Tensor, bindings: Bindings) -> None:
        """Do one node now."""
        self.begin("compute", node.op)
        kernel = self._kernels.get(node.op)
        if kernel is None:
            raise Unsupported(f"{self.name}: no kernel for {node}")
        arrays = [self._array(t, bindings) for t in (node, *node.sources)]
        with np.errstate(all="ignore"):
            kernel(node, *arrays)

    def _array(self, tensor: Tensor, bindings: Bindings) -> Array:
        place = bindings.where(tensor)
        buffer = place.buffer
        memory = buffer.device_memory() if isinstance(buffer, NullBuffer) else buffer.host()
        array = array_view(tensor, memory, place.offset)
        return array[(np.newaxis,) * (4 - array.ndim)]
