"""Memory of fake devices: bytes that only the device sees, unless the host may."""

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tensorplug.device import ArrayBuffer, Buffer, BufferType, BufferUsage
from tensorplug.graph.tensor import Array

if TYPE_CHECKING:
    from tensorplug_testing.null import NullDevice


class NullBufferType(BufferType):
    """Memory of a fake device; fresh memory is all ones: NaN as floats, -1 as integers."""

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
    """Bytes that only the device's work and explicit transfers reach, unless the host sees them."""

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
        """The bytes as the device sees them; of a closed buffer rubbish, as on a real device."""
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
        """Copy bytes from any fake device's memory now."""
        self._device.pass_gate()
        source._device.check_alive()
        self._device.begin("copy", size)
        self.device_memory()[offset : offset + size] = source.device_memory()[start : start + size]

    def spoil(self) -> None:
        """Forget what was here."""
        self._memory[...] = 0xFF

    def _close(self) -> None:
        self.spoil()  # work that is in the midst of it finds rubbish
        super()._close()
        self._device.give(self.size)


NullBufferType.buffer_class = NullBuffer


def _aligned(size: int, alignment: int) -> Array:
    """Return `size` bytes, all ones, that start at a multiple of `alignment`."""
    memory = np.full(size + alignment, 0xFF, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + size]
