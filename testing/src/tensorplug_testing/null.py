"""`NullDevice`: a fake device with limited memory, planned faults and asynchronous streams."""

import builtins
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tensorplug.device import (
    Array,
    Backend,
    Bindings,
    Buffer,
    BufferType,
    Device,
    DeviceSpan,
    DeviceType,
    Event,
    Group,
    Memory,
    Part,
    Pattern,
    Place,
    Plan,
    Tensor,
    array_view,
)
from tensorplug.dtypes import F64
from tensorplug.errors import (
    DeviceError,
    OutOfMemory,
    Refusal,
    TensorplugError,
    Unsupported,
    blaming,
)
from tensorplug.fusion.library import PATTERNS
from tensorplug.planning.stages import AHEAD
from tensorplug_testing.arithmetic import KERNELS, Kernel
from tensorplug_testing.faults import FAULTS, Faults
from tensorplug_testing.nullconcurrency import SideBySide
from tensorplug_testing.nullfusion import compute_group
from tensorplug_testing.nullmemory import NullBuffer, NullBufferType
from tensorplug_testing.timeline import Gate, NullEvent, Timeline

__all__ = [
    "FAULTS",
    "Entry",
    "NullBackend",
    "NullBuffer",
    "NullBufferType",
    "NullDevice",
    "null_devices",
]


class Entry(NamedTuple):
    """One action of a device: `("compute", "add")`, `("copy", 64)`; sizes are in bytes."""

    what: str
    detail: str | int


# --- streams -----------------------------------------------------------------------------------


class NullBackend(Backend):
    """A stream without optional abilities; it queues work only if its device is asynchronous."""

    device: "NullDevice"

    def __init__(self, device: "NullDevice") -> None:
        self._stream = device.timeline.stream(device.gate)
        super().__init__(device)

    def queue(self, what: str, job: Callable[[], None], after: NullEvent | None = None) -> None:
        """Do `job` in stream order and after an event: now, or, if asynchronous, at a wait."""
        self.device.faults.meet("queue")
        if self.device.asynchronous:
            self._stream.put(job, after)
            return
        self.device.pass_gate()
        if after is not None:
            after.synchronize()
        job()

    def mark(self) -> NullEvent:
        """An event after all work queued so far."""
        return NullEvent(self._stream, self.device.family)

    def _plan(self, bound: Part) -> Plan:
        self.device.faults.meet("plan")
        return super()._plan(bound)

    def _compute_group(self, group: Group, bindings: Bindings) -> None:
        self.queue(group.pattern.name, partial(self.device.compute_group, group, bindings))

    def _compute(self, node: Tensor, bindings: Bindings) -> None:
        self.queue(node.op, partial(self.device.compute, node, bindings))

    def _has_failed(self) -> bool:
        return self._stream.has_failed

    def _synchronize(self) -> None:
        self.device.faults.meet("wait")
        self.mark().synchronize()
        self.device.pass_gate()
        error = self._stream.take_error()
        if error is not None:
            raise error

    def _close(self) -> None:
        self.device.timeline.forget(self._stream)


def _nothing() -> None:
    """The job of a stream that only waits for an event: does nothing."""


class _Events(NullBackend):
    def record(self) -> Event:
        self.device.faults.meet("event")
        return self.mark()

    def accepts(self, event: Event) -> bool:
        return isinstance(event, NullEvent) and event.family == self.device.family

    def wait(self, event: Event) -> None:
        if not self.accepts(event):
            raise Unsupported(f"{self.name}: cannot wait for {event!r} of another kind of device")
        assert isinstance(event, NullEvent)
        self.queue("wait", _nothing, after=event)


class _AsyncTransfer(NullBackend):
    def write_async(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        self.queue("write", partial(buffer.write, offset, data))

    def read_async(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        self.queue("read", partial(buffer.read_into, offset, out))


class _AsyncCopy(NullBackend):
    def copy_async(self, source: Backend, start: Place, target: Place, size: int) -> bool:
        from_, to = start.buffer, target.buffer
        if not (
            isinstance(source, NullBackend)
            and source.device.family == self.device.family
            and isinstance(from_, NullBuffer)
            and isinstance(to, NullBuffer)
        ):
            return False
        after = None if source is self else source.mark()
        job = partial(to.take_copy, from_, start.offset, target.offset, size)
        self.queue("copy", job, after)
        return True


class _Profiling(NullBackend):
    profile = False

    def __init__(self, device: "NullDevice") -> None:
        super().__init__(device)
        self._spans: list[DeviceSpan] = []

    def queue(self, what: str, job: Callable[[], None], after: NullEvent | None = None) -> None:
        timed = self.profile and job is not _nothing
        super().queue(what, partial(self._time, what, job) if timed else job, after)

    def take_spans(self) -> Sequence[DeviceSpan]:
        taken, self._spans = self._spans, []
        return taken

    def _time(self, what: str, job: Callable[[], None]) -> None:
        start = perf_counter_ns()
        job()
        self._spans.append(DeviceSpan(what, start, perf_counter_ns()))


class _Concurrency(NullBackend):
    ahead = AHEAD
    plan_class = SideBySide


def _backend_class(*mixins: type[NullBackend]) -> type[NullBackend]:
    return type("NullBackend", (*mixins, NullBackend), {}) if mixins else NullBackend


_ABILITIES = (_Events, _AsyncTransfer, _AsyncCopy, _Profiling, _Concurrency)
_BACKENDS = {
    flags: _backend_class(*itertools.compress(_ABILITIES, flags))
    for flags in itertools.product((False, True), repeat=len(_ABILITIES))
}
"""One class for each set of abilities, so that `isinstance` finds exactly these abilities."""


# --- the device --------------------------------------------------------------------------------


class NullDevice(Device):
    """A fake device for tests. It computes in NumPy, in memory that the host cannot access.

    `ops` are the ops that it accepts, by default those with a kernel in `arithmetic`; `kernels`
    adds or replaces kernels. `memory` is the size of its memory and `max_size` the largest buffer,
    in bytes. With `host` the host can access the memory; with `host_buffer` there is a second
    buffer type that the host can access. `offloads` are the ops for which `offload()` is true.
    `fusions` are the patterns that it computes as one: node by node in scratch memory, after the
    memory of the outputs was overwritten. Without `float64` it refuses ops with f64. With
    `concurrent`, work between two barriers runs in random order. `log` grows without limit; without
    `logs` it stays empty.

    With `asynchronous`, work is done only when the host waits, in an order that `timeline` decides;
    devices overlap if they share a timeline. `events`, `async_transfer` and `async_copy` are by
    default as `asynchronous`. With `profiling` streams time their work. Devices with equal names
    before the colon accept each other's events and copies.
    """

    buffer_type_class: ClassVar[builtins.type[NullBufferType]] = NullBufferType

    def __init__(  # noqa: PLR0913 - a test names only what it is about
        self,
        name: str = "null:0",
        *,
        device_type: DeviceType = DeviceType.GPU,
        memory: int = 1 << 30,
        ops: Collection[str] | None = None,
        offloads: Collection[str] = (),
        host: bool = False,
        host_buffer: bool = False,
        float64: bool = True,
        max_size: int = 1 << 40,
        asynchronous: bool = False,
        events: bool | None = None,
        async_transfer: bool | None = None,
        async_copy: bool | None = None,
        profiling: bool = False,
        concurrent: bool = False,
        timeline: Timeline | None = None,
        kernels: Mapping[str, Kernel] | None = None,
        fusions: Sequence[Pattern] = PATTERNS,
        logs: bool = True,
    ) -> None:
        super().__init__(name)
        wanted = (events, async_transfer, async_copy)
        self.backend_class = _BACKENDS[
            (*(asynchronous if flag is None else flag for flag in wanted), profiling, concurrent)
        ]
        self.asynchronous = asynchronous
        self.timeline = timeline or Timeline()
        self.gate = Gate(name)
        self.fusions = tuple(fusions)
        self.log: list[Entry] = []
        self._logs = logs
        self.live_buffers = 0
        self.used = 0
        self._type = device_type
        self._total = memory
        self._kernels = {**KERNELS, **(kernels or {})}
        self._ops = None if ops is None else frozenset(ops)
        self._offloads = frozenset(offloads)
        kind = self.buffer_type_class
        self._buffer_type = kind(self, is_host=host, max_size=max_size)
        self._host_buffer_type = (
            kind(self, is_host=True, max_size=max_size, name=f"{name} host")
            if host_buffer
            else None
        )
        self._float64 = float64
        self.faults = Faults(name)

    # --- for tests -------------------------------------------------------------------------

    @property
    def family(self) -> str:
        """The part of the name before the colon."""
        return self.name.partition(":")[0]

    @property
    def computed(self) -> list[str]:
        """The ops that were computed, in order."""
        return [str(detail) for what, detail in self.log if what == "compute"]

    @property
    def fused(self) -> list[str]:
        """The patterns of the groups that were computed, in order."""
        return [str(detail) for what, detail in self.log if what == "group"]

    def fail(self, what: str, *, at: int = 1, error: TensorplugError | None = None) -> None:
        """Plan a fault: the `at`-th call of kind `what`, one of FAULTS, raises `error`, once."""
        kind = OutOfMemory if what == "alloc" else DeviceError
        planned = error or kind(f"{self.name}: {what} failed as the test planned")

        def strike() -> None:
            raise planned

        self.faults.plan(what, at, strike)

    def lose(self, what: str = "", *, at: int = 1) -> None:
        """Simulate a lost device: every call except closing raises DeviceLost; memory is garbage.

        The host keeps what lies in `host_buffer_type`. With `what`, one of FAULTS, the device is
        lost at the `at`-th call of this kind.
        """
        if what:
            self.faults.plan(what, at, self._vanish)
            return
        self.faults.lost = True
        for child in self.children:
            if isinstance(child, NullBuffer) and child.type is not self._host_buffer_type:
                child.spoil()

    def hang(self, what: str = "", *, at: int = 1, limit: float = 5.0) -> None:
        """Simulate a hung device: it does no work until `release()`, called by another thread.

        A call that waits for the device blocks, and raises DeviceError after `limit` seconds.
        Devices that share the timeline continue. With `what`, one of FAULTS, the device hangs at
        the `at`-th call of this kind.
        """
        if what:
            self.faults.plan(what, at, partial(self.hang, limit=limit))
            return
        self.gate.shut(limit)

    def release(self) -> None:
        """End a `hang()`: the device continues its work."""
        self.gate.open()
        self.timeline.wake()

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

    @property
    def host_buffer_type(self) -> NullBufferType | None:
        return self._host_buffer_type

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type.device is self or (self._buffer_type.is_host and buffer_type.is_host)

    def offload(self, node: Tensor) -> bool:
        return node.op in self._offloads

    def _refuses(self, node: Tensor, source_types: Mapping[Tensor, BufferType]) -> Refusal | None:
        if not self._float64 and any(t.dtype is F64 for t in (node, *node.sources)):
            return Refusal(f"{self.name}: no float64, which this {node.op} needs")
        if self._ops is not None:
            does = node.op in self._ops
            return None if does else Refusal(f"{self.name}: does not do {node.op}")
        if node.op not in self._kernels:
            return Refusal(f"{self.name}: no kernel for {node.op}")
        strange = next((t for t in (node, *node.sources) if t.dtype.numpy is None), None)
        if strange is not None:
            return Refusal(f"{self.name}: no kernel for {node.op} with {strange.dtype.name}")
        if node.op == "soft_max" and len(node.sources) > 1:
            return Refusal(f"{self.name}: no kernel for soft_max with a mask")
        return None

    def _refuses_group(
        self, group: Group, source_types: Mapping[Tensor, BufferType]
    ) -> Refusal | None:
        return None

    def _open(self, options: dict[str, Any]) -> Backend:
        self.check_alive()
        return self.backend_class(self)

    def _vanish(self) -> None:
        self.lose()
        self.check_alive()

    # --- for its buffers and streams -------------------------------------------------------

    def check_alive(self) -> None:
        """Raise DeviceLost after `lose()`."""
        with blaming(self):
            self.faults.check_alive()

    def pass_gate(self) -> None:
        """Block while the device hangs."""
        if self.gate.is_shut:
            self.timeline.wait_for(self.gate)

    def begin(self, what: str, detail: str | int) -> None:
        """Count a call, raise its planned fault if there is one, and add the call to the log."""
        with blaming(self):
            self.faults.meet(what)
        self._note(what, detail)

    def take(self, size: int) -> None:
        """Account for a new buffer of `size` bytes. Raises OutOfMemory beyond the limit."""
        with self.faults.lock:
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
        with self.faults.lock:
            self.used -= size
            self.live_buffers -= 1
            self._note("free", size)

    def _note(self, what: str, detail: str | int) -> None:
        if self._logs:
            self.log.append(Entry(what, detail))

    def compute_group(self, group: Group, bindings: Bindings) -> None:
        """Compute the nodes of a group now."""
        self._note("group", group.pattern.name)
        compute_group(self, group, bindings)

    def compute(
        self, node: Tensor, bindings: Bindings, scratch: Mapping[Tensor, Array] | None = None
    ) -> None:
        """Compute one node now; roots in `scratch` lie in these arrays instead of buffers."""
        self.begin("compute", node.op)
        kernel = self._kernels.get(node.op)
        if kernel is None:
            raise Unsupported(f"{self.name}: no kernel for {node}")
        arrays = [self.array(t, bindings, scratch or {}) for t in (node, *node.sources)]
        with np.errstate(all="ignore"):
            kernel(node, *arrays)

    def array(self, tensor: Tensor, bindings: Bindings, scratch: Mapping[Tensor, Array]) -> Array:
        """The elements of `tensor` as a NumPy array of four dimensions."""
        if tensor.root in scratch:
            array = array_view(tensor, scratch[tensor.root], tensor.view_offset)
        else:
            place = bindings.where(tensor)
            buffer = place.buffer
            memory = buffer.device_memory() if isinstance(buffer, NullBuffer) else buffer.host()
            array = array_view(tensor, memory, place.offset)
        return array[(np.newaxis,) * (4 - array.ndim)]


def null_devices(
    count: int, *, family: str = "null", seed: int = 0, **options: Any
) -> list[NullDevice]:
    """Return `count` devices that accept each other's events and share one timeline.

    `options` are the arguments of every NullDevice.
    """
    timeline = Timeline(seed)
    return [NullDevice(f"{family}:{i}", timeline=timeline, **options) for i in range(count)]
