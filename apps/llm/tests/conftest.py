"""Tiny models, and devices with memory that the host cannot read."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tensorplug import Backend, DeviceType
from tensorplug.device import Buffer, BufferType, BufferUsage, Memory
from tensorplug_cpu.device import CPUDevice
from tensorplug_cpu.memory import CPUBufferType

from .gguf_files import write_model
from .placements import set_activations


@pytest.fixture(scope="module", autouse=True)
def exact_arithmetic() -> Iterator[None]:
    """Devices are compared in f32: nothing rounds activations that is not told to."""
    with pytest.MonkeyPatch.context() as patch:
        set_activations(patch, "f32")
        yield


class WalledBufferType(CPUBufferType):
    """Memory of one device; the host has to copy."""

    is_host = False

    def __init__(self, device: "WalledDevice") -> None:
        super().__init__(device)
        self.name = device.name
        self._limit = device.limit

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        if size > self._limit:
            raise MemoryError(f"{size} bytes asked for, {self._limit} left")
        return super()._alloc(size, usage)


class WalledDevice(CPUDevice):
    """Computes with the kernels of the cpu, in memory of its own: up to `limit` bytes a buffer."""

    def __init__(self, name: str = "walled:0", *, free: int = 0, limit: int = 1 << 30) -> None:
        self.limit, self._free = limit, free
        super().__init__(name)
        self._own = WalledBufferType(self)

    @property
    def type(self) -> DeviceType:
        return DeviceType.GPU

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        return ()

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type is self._own

    def memory(self) -> Memory:
        return Memory(self._free, self._free)


@pytest.fixture
def model_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a model of an architecture, see `write_model`."""

    def write(architecture: str = "llama", **changes: object) -> Path:
        return write_model(tmp_path / f"{architecture}.gguf", architecture, **changes)

    return write


@pytest.fixture
def cpu() -> Iterator[Backend]:
    """One thread of the cpu: tiny products are slower with more."""
    device = CPUDevice()
    with device.open(threads=1) as backend:
        yield backend
    device.close(force=True)


@pytest.fixture
def walled() -> Iterator[Callable[..., Backend]]:
    """Opens devices with walls, see `WalledDevice`."""
    devices: list[WalledDevice] = []

    def open_one(name: str = "walled:0", **limits: int) -> Backend:
        devices.append(WalledDevice(name, **limits))
        return devices[-1].open(threads=1)

    yield open_one
    for device in devices:
        device.close(force=True)
