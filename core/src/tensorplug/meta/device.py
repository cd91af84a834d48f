"""`MetaDevice`: several devices that act as one, and its streams."""

import builtins
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorplug.device.abilities import SupportsAsyncTransfer, SupportsEvents, has_ability
from tensorplug.device.backend import Backend
from tensorplug.device.buffer import Buffer, BufferType
from tensorplug.device.device import Device, DeviceType, Memory, Rounding
from tensorplug.device.event import Event
from tensorplug.device.moving import queue_copy, queue_read, queue_write
from tensorplug.device.part import Part
from tensorplug.errors import OptionError, Refusal, TensorplugError
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Place, Tensor
from tensorplug.meta.buffer import MetaBuffer, MetaBufferType
from tensorplug.meta.build import build
from tensorplug.meta.explain import SplitTable, table_of
from tensorplug.meta.opening import Opening
from tensorplug.meta.plan import MetaPlan, home_of, plan_sizes
from tensorplug.meta.policy import Policy, policy_called
from tensorplug.meta.state import MOST_DEVICES, WHOLE, Partition
from tensorplug.meta.steps import CALLS
from tensorplug.ops.split import MIRRORED
from tensorplug.planning.memory import Slot
from tensorplug.running.arena import Arena
from tensorplug.running.fleet import Fleet

ASYNCHRONOUS = (SupportsEvents, SupportsAsyncTransfer)
"""What the streams of all devices must support for the meta device's streams to be asynchronous."""


class MetaBackend(Backend):
    """The stream of a meta device: one stream on each of its devices."""

    device: "MetaDevice"
    plan_class = MetaPlan

    def __init__(self, device: "MetaDevice") -> None:
        opened: list[Backend] = []
        try:
            opened.extend(opening.open() for opening in device.openings)
            self.streams = tuple(opened)
            self.prefers_f16 = all(stream.prefers_f16 for stream in opened)
            self.zeros = Arena(device.buffer_type.kinds, self._synchronize)
            """Zeros that all plans share: devices without a summand add them."""
            self._zeroed = self.zeros.generation
            self.fleet = Fleet(opened, device.buffer_type.kinds, self._synchronize, CALLS)
            self.moved = 0
            """Bytes that devices have received from each other in all runs."""
            # Last: once the device lists this backend, other threads may synchronize with it.
            super().__init__(device)
        except BaseException:
            for stream in opened:
                stream.close()
            raise

    def rounding(self, node: Tensor) -> Rounding:
        """The coarsest rounding of the streams."""
        return max(stream.rounding(node) for stream in self.streams)

    def reserve_zeros(self, sizes: Sequence[int]) -> None:
        """Make the zeros of each device at least as large as asked for. Raises OutOfMemory."""
        self.zeros.grow([[size] for size in sizes])
        if self._zeroed != self.zeros.generation:
            for device in range(len(sizes)):
                self.zeros.place(Slot(device, 0, 0, 0)).buffer.fill(0)
            self._zeroed = self.zeros.generation

    def plan_sizes(self, parts: Iterable[Part]) -> Mapping[BufferType, int]:
        """Bytes on each device that plans of these parts would allocate in all."""
        return plan_sizes(self.device, parts)

    def _compute(self, node: Tensor, bindings: Bindings) -> None:
        with MetaPlan(self, Part([node], bindings)) as plan:
            plan.run()

    def _has_failed(self) -> bool:
        return any(stream.has_failed for stream in self.streams)

    def _synchronize(self) -> None:
        errors = []
        for stream in self.streams:
            try:
                stream.synchronize()
            except TensorplugError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _close(self) -> None:
        self.fleet.arena.release()
        self.zeros.release()
        for stream in self.streams:
            stream.close(force=True)


# --- abilities -----------------------------------------------------------------------------------


class MetaEvent(Event):
    """An event recorded in the stream of each device."""

    def __init__(self, marks: Sequence[Event]) -> None:
        self.marks = tuple(marks)

    def synchronize(self) -> None:
        for mark in self.marks:
            mark.synchronize()

    @property
    def done(self) -> bool:
        return all(mark.done for mark in self.marks)


class AsyncMetaBackend(MetaBackend):
    """The stream of a meta device whose devices all queue transfers and record events."""

    def record(self) -> Event:
        self.check_open()
        return MetaEvent([s.record() for s in self.streams if isinstance(s, SupportsEvents)])

    def accepts(self, event: Event) -> bool:
        return isinstance(event, MetaEvent) and all(
            s.accepts(mark)
            for s in self.streams
            if isinstance(s, SupportsEvents)
            for mark in event.marks
        )

    def wait(self, event: Event) -> None:
        if not isinstance(event, MetaEvent):
            event.synchronize()
            return
        for stream in self.streams:
            for mark in event.marks:
                if isinstance(stream, SupportsEvents):
                    stream.wait(mark)

    def write_async(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        assert isinstance(buffer, MetaBuffer)
        buffer._check(offset, data.nbytes, "write")
        if not buffer.is_plain(offset, data.nbytes):
            self._synchronize()
            buffer.write(offset, data)
            return
        for stream, copy in zip(self.streams, buffer.copies, strict=True):
            queue_write(stream, Place(copy, offset), data)

    def read_async(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        assert isinstance(buffer, MetaBuffer)
        buffer._check(offset, out.nbytes, "read")
        if not buffer.is_plain(offset, out.nbytes):
            self._synchronize()
            buffer.read_into(offset, out)
            return
        queue_read(self.streams[0], Place(buffer.copies[0], offset), out)

    def copy_async(self, source: Backend, start: Place, target: Place, size: int) -> bool:
        a, b = start.buffer, target.buffer
        if not (
            isinstance(source, MetaBackend)
            and source.device is self.device
            and isinstance(a, MetaBuffer)
            and isinstance(b, MetaBuffer)
            and a.is_plain(start.offset, size)
            and b.is_plain(target.offset, size)
        ):
            return False
        for d, (theirs, mine) in enumerate(zip(source.streams, self.streams, strict=True)):
            queue_copy(
                theirs,
                mine,
                Place(a.copies[d], start.offset),
                Place(b.copies[d], target.offset),
                size,
            )
        return True


# --- the device ----------------------------------------------------------------------------------


class MetaDevice(Device):
    """Several devices that hold slices of tensors and compute on them in parallel.

    Its streams queue transfers and record events if the streams of all its devices do both. It does
    not own its devices: closing it leaves them open.
    """

    backend_class: builtins.type[MetaBackend]

    def __init__(self, openings: Sequence[Opening], policy: Policy) -> None:
        """Applications call `meta.device` instead."""
        devices = [opening.device for opening in openings]
        super().__init__(f"meta({'+'.join(d.name for d in devices)})")
        for each in devices:
            each.check_open()
        self.devices = tuple(devices)
        self.openings = tuple(openings)
        self.policy = policy
        self.generation = 0
        """Counts the changes of tensor states in memory after which plans must be made again."""
        self._buffer_type = MetaBufferType(self, [d.buffer_type for d in devices])
        able = all(has_ability(d.backend_class, a) for d in devices for a in ASYNCHRONOUS)
        self.backend_class = AsyncMetaBackend if able else MetaBackend

    def _survives_fork(self) -> bool:
        return all(device._survives_fork() for device in self.devices)

    @property
    def description(self) -> str:
        return " + ".join(d.description for d in self.devices)

    @property
    def type(self) -> DeviceType:
        return DeviceType.META

    def memory(self) -> Memory:
        """The sums over the devices. Host memory, which CPU devices share, counts once."""
        processors = [d for d in self.devices if d.type is DeviceType.CPU]
        each = [d.memory() for d in self.devices if d not in processors[1:]]
        return Memory(sum(m.free for m in each), sum(m.total for m in each))

    @property
    def buffer_type(self) -> MetaBufferType:
        return self._buffer_type

    def offload(self, node: Tensor) -> bool:
        return any(d.offload(node) for d in self.devices)

    def partition_of(self, tensor: Tensor) -> Partition:
        """The state in which the policy stores `tensor`. Raises OptionError if it is invalid."""
        if tensor.is_input or not tensor.size:
            return WHOLE
        state = self.policy(tensor)
        if state is None or state.axis is MIRRORED:
            return WHOLE
        state.check(tensor, len(self.devices))
        return state

    def explain(self, graph: Graph, bindings: Bindings | None = None) -> SplitTable:
        """The state of every tensor of `graph`, and why, without computing anything.

        Leafs and outputs without memory count as mirrored.
        """
        where = bindings or Bindings()
        wanted = {t.root for t in (*graph.leafs, *graph.outputs)}

        def home(root: Tensor) -> Partition | None:
            if where.has(root):
                return home_of(root, where)
            return WHOLE if root in wanted else None

        return table_of(build(graph.nodes, self.devices, home, where.names), self.name)

    def _refuses(self, node: Tensor, source_types: Mapping[Tensor, BufferType]) -> Refusal | None:
        for d, device in enumerate(self.devices):
            types = {
                t: kind.kinds[d]
                if isinstance(kind, MetaBufferType) and kind.device is self
                else kind
                for t, kind in source_types.items()
            }
            refusal = device.refuses(node, types)
            if refusal is not None:
                return refusal
        return None

    def _open(self, options: dict[str, Any]) -> Backend:
        return self.backend_class(self)


def device(
    devices: Sequence[Device | Backend],
    split: Policy | str = "mirrored",
    *,
    ratio: Sequence[float] | None = None,
) -> MetaDevice:
    """Return one device that is made of several.

    `devices` may contain streams (backends): the new device opens further streams of their devices
    with the present options and settings of the given stream. For a device it opens streams with
    default options.

    `split` says how weights, caches and other stored tensors are cut. It is a function that takes a
    tensor and returns a Partition, or None to mirror the tensor on every device; or it is the name
    of one of `POLICIES`, which cut in the proportions of `ratio`, by default evenly. The states of
    results follow from the states of stored tensors. Raises OptionError.
    """
    if not 1 <= len(devices) <= MOST_DEVICES:
        raise OptionError(
            f"meta.device: {len(devices)} devices given; it takes 1 to {MOST_DEVICES}"
        )
    if ratio is not None and len(ratio) != len(devices):
        raise OptionError(
            f"meta.device: ratio {tuple(ratio)} for {len(devices)} devices; give one part for each"
        )
    openings = [Opening.of(each) for each in devices]
    if isinstance(split, str):
        return MetaDevice(openings, policy_called(split, tuple(ratio or [1] * len(devices))))
    if ratio is not None:
        raise OptionError("meta.device: ratio goes with a named policy; a function has its own")
    return MetaDevice(openings, split)
