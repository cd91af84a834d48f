"""Host memory that a GPU reaches by itself: pinned buffers, and memory that is registered."""

from typing import TYPE_CHECKING, Any

import numpy as np
from cupy.cuda import MemoryPointer, PinnedMemory, PinnedMemoryPointer, UnownedMemory, runtime

from tensorplug.device import (
    Array,
    Buffer,
    BufferType,
    BufferUsage,
    DeviceError,
    DeviceLost,
    HostBuffer,
    OutOfMemory,
    Resource,
    Unsupported,
    as_bytes,
)
from tensorplug_cuda.errors import driver_errors
from tensorplug_cuda.memory import CudaBufferType, ForeignBuffer

if TYPE_CHECKING:
    from tensorplug_cuda.device import CudaDevice

PORTABLE, MAPPED, READ_ONLY = 1, 2, 8
"""How memory is registered: for every GPU, for kernels too, and without the right to write it."""


class PinnedBufferType(BufferType):
    """Host memory that stays where it is, so that the GPU moves it without the processor."""

    device: "CudaDevice"
    is_host = True

    def __init__(self, device: "CudaDevice") -> None:
        super().__init__(device)
        self.name = f"{device.name}_host"
        # Tensors lie as far apart here as on the GPU, so that one transfer takes several.
        self.alignment = device.buffer_type.alignment

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        with driver_errors(f"{self.name}: {size} bytes"), self.device.current():
            pinned = PinnedMemoryPointer(PinnedMemory(size, runtime.hostAllocPortable), 0)
        # Arrays that look at the memory keep it alive.
        return HostBuffer(self, np.frombuffer(pinned, np.uint8, size), usage)


class Registration(Resource):
    """Host memory that is pinned where it lies, until this is closed: a mapped file, for example.

    Transfers of it are as fast as those of pinned buffers. It stays alive as long as this.
    """

    def __init__(self, device: "CudaDevice", memory: Array) -> None:
        super().__init__(device)
        self.memory = np.frombuffer(as_bytes(memory), np.uint8)
        self.address: int = self.memory.__array_interface__["data"][0]
        self._device = device
        self._held = False
        flags = PORTABLE | MAPPED | (0 if self.memory.flags.writeable else READ_ONLY)
        where = f"{device.name}: registration of {self.memory.size} bytes of host memory"
        with driver_errors(where), device.current():
            runtime.hostRegister(self.address, self.memory.size, flags)
        self._held = True

    def _finish(self) -> None:
        self._device.drain()

    def _close(self) -> None:
        if self._held:
            with driver_errors(f"{self!r}: end of it"), self._device.current():
                runtime.hostUnregister(self.address)
        self.memory = np.empty(0, np.uint8)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.memory.size} bytes"
        return f"<Registration {self._device.name}, {state}>"


class ImportedBuffer(ForeignBuffer):
    """Host memory that kernels compute on where it lies, over the bus."""

    def __init__(self, buffer_type: CudaBufferType, held: Registration) -> None:
        device, size = buffer_type.device, held.memory.size
        memory = UnownedMemory(held.address, size, held, device.ordinal)
        super().__init__(buffer_type, size, BufferUsage.ANY, MemoryPointer(memory, 0))
        self._registration: Any = held
        self.read_only = not held.memory.flags.writeable

    def _close(self) -> None:
        super()._close()
        self._registration.close()


def import_host(buffer_type: CudaBufferType, memory: Array) -> ImportedBuffer:
    """A buffer of host memory, registered as long as it lives.

    Raises Unsupported, also for memory that CUDA does not pin: some of its pages may be pinned
    already, and not every system pins memory that may only be read.
    """
    device = buffer_type.device
    if not device.gpu.host_pointers:
        raise Unsupported(
            f"{device.name}: kernels do not reach host memory under its own address on this "
            "system; place() it"
        )
    device.need_aligned(np.frombuffer(as_bytes(memory), np.uint8).ctypes.data)
    try:
        held = Registration(device, memory)
    except DeviceLost:
        raise
    except (DeviceError, OutOfMemory) as error:
        raise Unsupported(f"{error}; place() copies it") from error
    return ImportedBuffer(buffer_type, held)
