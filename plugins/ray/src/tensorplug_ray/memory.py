"""Memory of a device behind an actor."""

from dataclasses import astuple, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplug.device import Buffer, BufferType, BufferUsage, FileRange, Layout, Tensor, as_bytes
from tensorplug.errors import TensorplugError, blaming
from tensorplug_ray.link import next_number

if TYPE_CHECKING:
    from tensorplug_ray.device import RayDevice


class RayBufferType(BufferType):
    """One of the buffer types of the device that the actor opened; `index` is its number there."""

    device: "RayDevice"

    def __init__(self, device: "RayDevice", index: int, facts: dict[str, Any]) -> None:
        super().__init__(device)
        far = device.facts["name"]
        self.index = index
        self.name = f"{device.name}{str(facts['name']).removeprefix(far)}" if index else device.name
        self.alignment = facts["alignment"]
        self.max_size = facts["max_size"]
        self.layout = Layout(facts["layout"])
        self.fresh_is_zero = facts["fresh_is_zero"]
        self.only_shared = facts["only_shared"]

    def supports(self, tensor: Tensor) -> bool:
        return bool(self.device.questions.of_memory("supports", tensor, self.index))

    def prefers(self, weights: Tensor) -> bool:
        return bool(self.device.questions.of_memory("prefers", weights, self.index))

    def _alloc_size(self, tensor: Tensor) -> int:
        return int(self.device.questions.of_memory("alloc_size", tensor, self.index))

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        number = next_number()
        size = self.device.link.call("alloc", number, self.index, size, usage.value)
        return RayBuffer(self, size, usage, number)


class RayBuffer(Buffer):
    """A buffer of the device, by its number there."""

    type: RayBufferType

    def __init__(self, kind: RayBufferType, size: int, usage: BufferUsage, number: int) -> None:
        self.number = number
        self.link = kind.device.link
        super().__init__(kind, size, usage)

    def write_tensor(self, tensor: Tensor, offset: int, data: memoryview) -> None:
        if self.type.standard_layout:
            super().write_tensor(tensor, offset, data)
            return
        facts = (tensor.name, tensor.shape, tensor.dtype.name)
        array = _array(data)
        self.link.post("write_tensor", self.number, offset, *facts, array, size=data.nbytes)

    def read_file(self, tensor: Tensor, offset: int, source: FileRange) -> bool:
        path = source.path
        if self.type.device.models:
            path = f"{self.type.device.models}/{PurePath(path).name}"
        facts = (tensor.name, tensor.shape, tensor.dtype.name)
        there = replace(source, path=path)
        return bool(self.link.call("read_file", self.number, offset, *facts, astuple(there)))

    def read_tensor(self, tensor: Tensor, offset: int, out: memoryview) -> None:
        if self.type.standard_layout:
            super().read_tensor(tensor, offset, out)
            return
        facts = (tensor.name, tensor.shape, tensor.dtype.name)
        out[:] = as_bytes(self.link.call("read_tensor", self.number, offset, *facts))

    def _write(self, offset: int, data: memoryview) -> None:
        self.link.post("write", self.number, offset, _array(data), size=data.nbytes)

    def _read(self, offset: int, out: memoryview) -> None:
        out[:] = as_bytes(self.link.call("read", self.number, offset, out.nbytes))

    def _fill(self, offset: int, size: int, value: int) -> None:
        self.link.post("fill", self.number, offset, size, value, size=0)

    def _write_2d(self, offset: int, data: memoryview, row: int, stride: int) -> None:
        array = _array(data)
        self.link.post("write_2d", self.number, offset, array, row, stride, size=data.nbytes)

    def _read_2d(self, offset: int, out: memoryview, row: int, stride: int) -> None:
        rows = out.nbytes // row
        out[:] = as_bytes(self.link.call("read_2d", self.number, offset, rows, row, stride))

    def _copy_from(self, source: Buffer, start: int, offset: int, size: int) -> bool:
        if not isinstance(source, RayBuffer):
            return False
        if source.link is self.link:
            self.link.post("copy", source.number, start, self.number, offset, size, size=0)
        else:  # the reference goes through this process, large data from node to node
            data = source.link.start("read", source.number, start, size)
            written = self.link.start("write", self.number, offset, data)
            try:
                self.link.wait([written], [(data, source.link)])
            except TensorplugError:
                with blaming(source.type.device):  # an error of the read made that of the write
                    source.link.wait([data])
                raise
        return True

    def _usage_changed(self) -> None:
        self.link.cast("use_for", self.number, self.usage.value)

    def _close(self) -> None:
        self.link.cast("free", self.number)


def _array(data: memoryview) -> Any:
    return np.frombuffer(data, np.uint8)
