"""Memory of fake devices: bytes that the host cannot access, unless the type is host memory."""

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tensorplug.device import Array, ArrayBuffer, Buffer, BufferType, BufferUsage

if TYPE_CHECKING:
    from tensorplug_testing.null import NullDevice


class NullBufferType(BufferType):
    """The memory of a fake device. Every bit of new memory is 1: NaN as floats, -1 as integers."""

    device: "NullDevice"
    buffer_class: ClassVar["type[NullBuffer]"]

    def __init__(
        self, device: "NullDevice", *, is_host: bool, max_size: int, name: str = ""
    ) -> None:
        super().__init__(device)
        self.name = name or device.name
        self.is_host = is_host
        self.max_size = max_size

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        self.device.take(size)
        return self.buffer_class(self, size, usage)


class NullBuffer(ArrayBuffer):
    """A buffer that only work of the device and transfers access, unless it is host memory."""

    type: NullBufferType

    def __init__(self, buffer_type: NullBufferType, size: int, usage: BufferUsage) -> None:
        super().__init__(buffer_type, _aligned(size, max(buffer_type.alignment, 1)), usage)
        self._device = buffer_type.device

    def host(self) -> Array:
        if not self.type.is_host:
            return super().host()
        self.check_open()
        return self._memory

    def device_memory(self) -> Array:
        """The bytes that work of the device accesses; garbage (all ones) after close."""
        return np.full(self.size, 0xFF, np.uint8) if self.closed else self._memory

    def _write(self, offset: int, data: memoryview) -> None:
        self._device.pass_gate()
        self._device.begin("write", data.nbytes)
        super()._write(offset, data)

    def _read(self, offset: int, out: memoryview) -> None:
        self._device.pass_gate()
        self._device.begin("read", out.nbytes)
        super()._read(offset, out)

    def _fill(self, offset: int, size: int, value: int) -> None:
        self._device.pass_gate()
        self._device.begin("write", size)
        super()._fill(offset, size, value)

    def _copy_from(self, source: Buffer, start: int, offset: int, size: int) -> bool:
        if not isinstance(source, NullBuffer) or source.type.device is not self._device:
            return False
        self.take_copy(source, start, offset, size)
        return True

    def take_copy(self, source: "NullBuffer", start: int, offset: int, size: int) -> None:
        """Copy bytes from a buffer of any fake device now."""
        self._device.pass_gate()
        source._device.check_alive()
        self._device.begin("copy", size)
        self.device_memory()[offset : offset + size] = source.device_memory()[start : start + size]

    def spoil(self) -> None:
        """Overwrite the content with ones, as the loss of a device does."""
        self._memory[...] = 0xFF

    def _close(self) -> None:
        self.spoil()  # work that still uses the memory reads garbage
        super()._close()
        self._device.give(self.size)


NullBufferType.buffer_class = NullBuffer


def _aligned(size: int, alignment: int) -> Array:
    """Return `size` bytes, all ones, that start at a multiple of `alignment`."""
    memory = np.full(size + alignment, 0xFF, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + size]
