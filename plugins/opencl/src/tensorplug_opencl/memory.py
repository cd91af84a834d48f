"""Memory of a device, pinned host memory, and host memory that the device computes on."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from tensorplug.device import (
    Array,
    Buffer,
    BufferType,
    BufferUsage,
    DeviceError,
    DeviceType,
    HostBuffer,
    OutOfMemory,
    TensorplugError,
    map_driver_errors,
)
from tensorplug_simt.device import SimtBuffer, SimtBufferType

if TYPE_CHECKING:
    from tensorplug_opencl.device import OpenCLDevice

ERRORS: Mapping[type[BaseException], type[TensorplugError]] = MappingProxyType(
    {cl.MemoryError: OutOfMemory, cl.Error: DeviceError}
)
"""What the driver's errors are here."""

LARGE = 4 << 20
"""Bytes from which on NumPy asks Linux for large pages: weights are read 5 % faster from those."""
PAGE = 4096


def _large_pages(size: int) -> Array:
    """New memory of the host for a processor's kernels. Raises MemoryError."""
    memory = np.empty(size + PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    return memory[start : start + size]


class OpenCLBufferType(SimtBufferType):
    """Memory of the device."""

    device: "OpenCLDevice"

    def __init__(self, device: "OpenCLDevice") -> None:
        super().__init__(device)
        self.max_size = int(device.driver.max_mem_alloc_size)
        self._lies_in_host = device.type is DeviceType.CPU

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        device, flags = self.device, cl.mem_flags.READ_WRITE
        device.need(size)
        with map_driver_errors(ERRORS, f"{self.name}: {size} bytes"):
            if self._lies_in_host and size >= LARGE:
                flags |= cl.mem_flags.USE_HOST_PTR
                memory = cl.Buffer(device.context, flags, hostbuf=_large_pages(size))
            else:
                memory = cl.Buffer(device.context, flags, size)
        return OpenCLBuffer(self, size, usage, memory)


class OpenCLBuffer(SimtBuffer):
    """A memory object. Kernels get all of it and an offset, so offsets need no alignment."""

    device: "OpenCLDevice"

    def _write(self, offset: int, data: memoryview) -> None:
        self.device.need_writeable(self)
        with map_driver_errors(ERRORS, f"{self!r}: write of {data.nbytes} bytes"):
            cl.enqueue_copy(self.device.transfers, self.memory, data, dst_offset=offset)

    def _read(self, offset: int, out: memoryview) -> None:
        with map_driver_errors(ERRORS, f"{self!r}: read of {out.nbytes} bytes"):
            cl.enqueue_copy(self.device.transfers, out, self.memory, src_offset=offset)

    def _fill(self, offset: int, size: int, value: int) -> None:
        self.device.need_writeable(self)
        with map_driver_errors(ERRORS, f"{self!r}: fill of {size} bytes"):
            pattern = np.full(1, value, np.uint8)
            cl.enqueue_fill_buffer(self.device.transfers, self.memory, pattern, offset, size).wait()

    def _write_2d(self, offset: int, data: memoryview, row: int, stride: int) -> None:
        self.device.need_writeable(self)
        self._copy_2d(self.memory, data, offset, data.nbytes, row, stride)

    def _read_2d(self, offset: int, out: memoryview, row: int, stride: int) -> None:
        self._copy_2d(out, self.memory, offset, out.nbytes, row, stride)

    def _copy_2d(
        self, target: Any, source: Any, offset: int, size: int, row: int, stride: int
    ) -> None:
        with map_driver_errors(ERRORS, f"{self!r}: 2D copy of {size} bytes"):
            cl.enqueue_copy(
                self.device.transfers,
                target,
                source,
                buffer_origin=(offset, 0, 0),
                host_origin=(0, 0, 0),
                region=(row, size // row, 1),
                buffer_pitches=(stride,),
                host_pitches=(row,),
            )

    def _copy_from(self, source: Buffer, start: int, offset: int, size: int) -> bool:
        if not isinstance(source, OpenCLBuffer) or source.device is not self.device:
            return False
        self.device.need_writeable(self)
        if source is self and start < offset + size and offset < start + size:
            return False  # copies within one object must not overlap
        with map_driver_errors(ERRORS, f"{self!r}: copy of {size} bytes"):
            cl.enqueue_copy(
                self.device.transfers,
                self.memory,
                source.memory,
                byte_count=size,
                src_offset=start,
                dst_offset=offset,
            ).wait()
        return True

    def _close(self) -> None:
        self.memory.release()
        super()._close()


class ImportedBuffer(OpenCLBuffer):
    """Host memory that the device computes on without a copy; `owner` keeps it alive."""

    def __init__(self, buffer_type: OpenCLBufferType, memory: Any, owner: Array) -> None:
        super().__init__(buffer_type, owner.nbytes, BufferUsage.ANY, memory)
        self._owner: Array | None = owner
        self.read_only = not owner.flags.writeable

    def _close(self) -> None:
        super()._close()
        self._owner = None


class PinnedBufferType(BufferType):
    """Host memory that the driver can reach without copying it first."""

    device: "OpenCLDevice"
    is_host = True

    def __init__(self, device: "OpenCLDevice") -> None:
        super().__init__(device)
        self.name = f"{device.name}_host"
        # Tensors lie as far apart here as on the device, so that one transfer takes several.
        self.alignment = device.buffer_type.alignment

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        device = self.device
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        with map_driver_errors(ERRORS, f"{self.name}: {size} bytes"):
            memory = cl.Buffer(device.context, flags, size)
            both = cl.map_flags.READ | cl.map_flags.WRITE
            mapped, _ = cl.enqueue_map_buffer(
                device.transfers, memory, both, 0, (size,), np.uint8, is_blocking=True
            )
        return PinnedBuffer(self, mapped, usage, memory)


class PinnedBuffer(HostBuffer):
    """A memory object that is mapped for its whole life."""

    type: PinnedBufferType

    def __init__(
        self, buffer_type: PinnedBufferType, mapped: Array, usage: BufferUsage, memory: Any
    ) -> None:
        super().__init__(buffer_type, mapped, usage)
        self._object = memory

    def _close(self) -> None:
        # The mapping ends when the last array that looks at it is gone; the driver holds the
        # object until then.
        super()._close()
        self._object = None
