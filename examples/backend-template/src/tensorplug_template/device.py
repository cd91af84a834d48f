"""The device: its memory, its stream, and the ops that it computes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensorplug.device import (
    Array,
    Backend,
    Bindings,
    Buffer,
    BufferType,
    BufferUsage,
    Device,
    DeviceType,
    Memory,
    OutOfMemory,
    Refusal,
    Tensor,
    as_bytes,
    map_driver_errors,
)
from tensorplug.dtypes import F32
from tensorplug_template import driver

OPS = frozenset({"add", "mul", "scale", "relu", "dup", "mul_mat", "rms_norm"})
NUMBERS = {"scale": ("scale", "bias"), "rms_norm": ("eps",)}
"""Parameters of ops that are arguments of kernels."""


class TemplateBufferType(BufferType):
    """The memory of the card."""

    def __init__(self, device: "TemplateDevice") -> None:
        super().__init__(device)
        self.name = device.name

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        with map_driver_errors({driver.DriverError: OutOfMemory}, self.name):
            return TemplateBuffer(self, size, usage, driver.malloc(size))


class TemplateBuffer(Buffer):
    """A buffer on the card. Offsets and sizes are checked before these methods are called."""

    def __init__(self, buffer_type: BufferType, size: int, usage: BufferUsage, handle: int) -> None:
        super().__init__(buffer_type, size, usage)
        self.handle = handle

    def _write(self, offset: int, data: memoryview) -> None:
        driver.upload(self.handle, offset, data)

    def _read(self, offset: int, out: memoryview) -> None:
        driver.download(self.handle, offset, out)

    def _fill(self, offset: int, size: int, value: int) -> None:
        driver.fill(self.handle, offset, size, value)

    def _copy_from(self, source: Buffer, start: int, offset: int, size: int) -> bool:
        if not isinstance(source, TemplateBuffer):
            return False  # then core copies through the host
        driver.copy(self.handle, offset, source.handle, start, size)
        return True

    def _close(self) -> None:
        driver.free(self.handle)


class TemplateBackend(Backend):
    """A synchronous stream. A stream that queues work also needs `_synchronize`."""

    def _compute(self, node: Tensor, bindings: Bindings) -> None:
        numbers = {name: node.params[name] for name in NUMBERS.get(node.op, ())}
        arrays = [_view(tensor, bindings) for tensor in (node, *node.sources)]
        driver.launch(node.op, *arrays, **numbers)


def _view(tensor: Tensor, bindings: Bindings) -> Array:
    """The argument of a kernel: the tensor's memory with four sizes and strides, slowest first."""
    place = bindings.where(tensor)
    assert isinstance(place.buffer, TemplateBuffer)
    kind, shape, strides = tensor.dtype.storage, tensor.ne[::-1], tensor.nb[::-1]
    return driver.view(place.buffer.handle, place.offset, kind, shape, strides)


class TemplateDevice(Device):
    """One card."""

    backend_class = TemplateBackend

    def __init__(self, name: str, index: int) -> None:
        super().__init__(name)
        self._index = index
        self._memory = TemplateBufferType(self)

    @property
    def description(self) -> str:
        return "Template card"

    @property
    def type(self) -> DeviceType:
        return DeviceType.ACCEL

    def memory(self) -> Memory:
        return Memory(driver.CAPACITY - driver.used(), driver.CAPACITY)

    @property
    def buffer_type(self) -> BufferType:
        return self._memory

    def import_host(self, memory: Array, *, largest_tensor: int = 0) -> Buffer:
        """Return a buffer over host memory of another owner. The buffer keeps it alive."""
        flat = np.frombuffer(as_bytes(memory), np.uint8)
        return TemplateBuffer(self._memory, flat.size, BufferUsage.ANY, driver.wrap(flat))

    def _open(self, options: dict[str, Any]) -> Backend:
        return TemplateBackend(self)

    def _refuses(self, node: Tensor, source_types: Mapping[Tensor, BufferType]) -> Refusal | None:
        if node.op not in OPS:
            return Refusal(f"no kernel for {node.op}")
        strange = next((t for t in (node, *node.sources) if t.dtype is not F32), None)
        if strange is not None:
            return Refusal(f"{node.op}: no kernel for {strange.dtype.name}")
        if node.op in ("add", "mul") and not _broadcasts(node.sources[1], node):
            return Refusal(f"{node.op}: no kernel for sources that repeat more than one element")
        if node.op == "mul_mat" and not _broadcasts_batch(node.sources[0], node.sources[1]):
            return Refusal("mul_mat: no kernel for weights that repeat over part of the batch")
        return None


def _broadcasts(small: Tensor, large: Tensor) -> bool:
    return all(n in (1, m) for n, m in zip(small.ne, large.ne, strict=True))


def _broadcasts_batch(w: Tensor, x: Tensor) -> bool:
    return all(n in (1, m) for n, m in zip(w.ne[2:], x.ne[2:], strict=True))
