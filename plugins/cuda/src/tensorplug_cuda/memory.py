"""Memory of a GPU, and what may lie in it: buffers of ours, and arrays of others."""

from typing import TYPE_CHECKING, Any

import numpy as np
from cupy.cuda import Memory, MemoryPointer, runtime

from tensorplug.device import Buffer, BufferUsage, Tensor
from tensorplug_cuda.arrays import array_of
from tensorplug_cuda.errors import driver_errors
from tensorplug_simt.device import SimtBuffer, SimtBufferType

if TYPE_CHECKING:
    from tensorplug_cuda.device import CudaDevice

ANY_WAY = 4
"""CUDA's number for a copy whose direction the addresses tell: imported memory is the host's."""


def address(data: memoryview) -> int:
    """Where host bytes lie."""
    place: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return place


class CudaBufferType(SimtBufferType):
    """Memory of the GPU."""

    device: "CudaDevice"

    def __init__(self, device: "CudaDevice") -> None:
        super().__init__(device)
        self.max_size = device.total

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        device = self.device
        device.need(size)
        # From the driver itself, not from CuPy's pool: what is closed is free for everybody again.
        with driver_errors(f"{self.name}: {size} bytes"), device.current():
            memory = MemoryPointer(Memory(size), 0)
        return CudaBuffer(self, size, usage, memory)


class CudaBuffer(SimtBuffer):
    """Memory at an address of the GPU's. Blocking transfers have a stream of their own.

    An array that views the memory keeps it when the buffer is closed.
    """

    device: "CudaDevice"

    def __init__(
        self, buffer_type: CudaBufferType, size: int, usage: BufferUsage, memory: Any
    ) -> None:
        super().__init__(buffer_type, size, usage, memory)
        self.address: int = memory.ptr

    def _write(self, offset: int, data: memoryview) -> None:
        with self._moving("write", data.nbytes) as stream:
            start = self.address + offset
            runtime.memcpyAsync(start, address(data), data.nbytes, ANY_WAY, stream.ptr)

    def _read(self, offset: int, out: memoryview) -> None:
        with self._moving("read", out.nbytes) as stream:
            start = self.address + offset
            runtime.memcpyAsync(address(out), start, out.nbytes, ANY_WAY, stream.ptr)

    def _fill(self, offset: int, size: int, value: int) -> None:
        with self._moving("fill", size) as stream:
            runtime.memsetAsync(self.address + offset, value, size, stream.ptr)

    def _write_2d(self, offset: int, data: memoryview, row: int, stride: int) -> None:
        with self._moving("2D write", data.nbytes) as stream:
            start, rows = self.address + offset, data.nbytes // row
            runtime.memcpy2DAsync(start, stride, address(data), row, row, rows, ANY_WAY, stream.ptr)

    def _read_2d(self, offset: int, out: memoryview, row: int, stride: int) -> None:
        with self._moving("2D read", out.nbytes) as stream:
            start, rows = self.address + offset, out.nbytes // row
            runtime.memcpy2DAsync(address(out), row, start, stride, row, rows, ANY_WAY, stream.ptr)

    def _copy_from(self, source: Buffer, start: int, offset: int, size: int) -> bool:
        if not isinstance(source, CudaBuffer) or overlap(source, start, self, offset, size):
            return False
        with self._moving("copy", size) as stream:
            queue_copy(source, start, self, offset, size, stream)
        return True

    def shared(self, tensor: Tensor, offset: int) -> Any:
        self.check_open()
        return array_of(tensor, self.memory + offset)

    def _moving(self, what: str, size: int) -> Any:
        return self.device.moving(f"{self!r}: {what} of {size} bytes")


class ForeignBuffer(CudaBuffer):
    """Memory of another library; the buffer keeps its owner alive."""

    def _count(self, size: int) -> None:
        """Nothing is counted: the library that allocated the memory counts it."""


def overlap(source: CudaBuffer, start: int, target: CudaBuffer, offset: int, size: int) -> bool:
    """Whether a copy of `size` bytes would read what it writes."""
    first, second = source.address + start, target.address + offset
    return first < second + size and second < first + size


def queue_copy(
    source: CudaBuffer, start: int, target: CudaBuffer, offset: int, size: int, stream: Any
) -> None:
    """Queue a copy within a GPU, from one to another, or of imported memory: addresses tell which.

    Where two GPUs have no link, the driver goes through the host.
    """
    to, of = target.address + offset, source.address + start
    runtime.memcpyAsync(to, of, size, ANY_WAY, stream.ptr)
