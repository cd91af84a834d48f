"""`EmulatedDevice`: the lowering and the kernels of a backend, on the processor."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tensorplug.backend import Backend
from tensorplug.buffer import Buffer, BufferType, BufferUsage
from tensorplug.device import Device, DeviceType, Memory
from tensorplug.errors import Refusal
from tensorplug.graph import Bindings
from tensorplug.tensor import Tensor
from tensorplug_simt.emulator.emulator import Emulator
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import SHARED, Lowering, lower
from tensorplug_simt.program import Program

ALIGNMENT = 256
CAPACITY = 1 << 30
"""Bytes of a device; no more than a number, since memory is the host's."""


class EmulatedBuffer(Buffer):
    """Host memory that only kernels and transfers reach."""

    def __init__(self, buffer_type: BufferType, size: int, usage: BufferUsage) -> None:
        super().__init__(buffer_type, size, usage)
        room = np.full(size + ALIGNMENT, 0xFF, np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        self._bytes = room[start : start + size]

    @property
    def address(self) -> int:
        """Of its first byte."""
        return int(self._bytes.ctypes.data)

    def _write(self, offset: int, data: memoryview) -> None:
        self._bytes[offset : offset + data.nbytes] = data

    def _read(self, offset: int, out: memoryview) -> None:
        np.frombuffer(out, np.uint8)[:] = self._bytes[offset : offset + out.nbytes]

    def _fill(self, offset: int, size: int, value: int) -> None:
        self._bytes[offset : offset + size] = value

    def _copy_from(self, source: Buffer, start: int, offset: int, size: int) -> bool:
        if not isinstance(source, EmulatedBuffer):
            return False
        self._bytes[offset : offset + size] = source._bytes[start : start + size].copy()
        return True

    def _close(self) -> None:
        self._bytes = np.empty(0, np.uint8)


class EmulatedBufferType(BufferType):
    """Memory of the emulated device; scratch memory follows the tensor that needs it."""

    device: "EmulatedDevice"
    alignment = ALIGNMENT

    def __init__(self, device: "EmulatedDevice") -> None:
        super().__init__(device)
        self.name = device.name

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        return EmulatedBuffer(self, size, usage)

    def _alloc_size(self, tensor: Tensor) -> int:
        program = self.device.lower(tensor) if tensor.op != "none" else None
        scratch = program.scratch if isinstance(program, Program) else 0
        return _after(tensor) + scratch if scratch else tensor.nbytes


class EmulatedBackend(Backend):
    """Work is done at once."""

    device: "EmulatedDevice"

    def _compute(self, node: Tensor, bindings: Bindings) -> None:
        program = self.device.lower(node)
        assert isinstance(program, Program)  # asked before
        self.device.emulator.prepare(program.launches)
        for launch in program.launches:
            places = {}
            for name, region in launch.regions.items():
                place = bindings.where(node if region.tensor is None else region.tensor)
                assert isinstance(place.buffer, EmulatedBuffer)
                scratch = _after(node) if region.tensor is None else 0
                places[name] = place.buffer.address, place.offset + scratch + region.offset
            self.device.emulator.run(launch, places)


class EmulatedDevice(Device):
    """Kernels of a table of lowerings, as a device with `facts` would run them."""

    backend_class = EmulatedBackend

    def __init__(
        self,
        name: str = "emulated:0",
        *,
        emulator: Emulator | None = None,
        facts: Facts = Facts(wide=False),  # noqa: B008 - frozen
        lowerings: Mapping[str, Lowering] = SHARED,
    ) -> None:
        super().__init__(name)
        self.emulator = emulator or Emulator()
        self._facts = facts
        self._lowerings = lowerings
        self._memory = EmulatedBufferType(self)

    def lower(self, node: Tensor) -> Program | Refusal:
        """The launches of a node, or why there are none."""
        return lower(node, self._facts, self._lowerings)

    def prepare(self, nodes: Iterable[Tensor]) -> None:
        """Compile the kernels of many nodes at once."""
        programs = (self.lower(node) for node in nodes)
        self.emulator.prepare(
            launch for p in programs if isinstance(p, Program) for launch in p.launches
        )

    @property
    def description(self) -> str:
        return "kernels emulated on the processor"

    @property
    def type(self) -> DeviceType:
        return DeviceType.ACCEL

    def memory(self) -> Memory:
        return Memory(CAPACITY, CAPACITY)

    @property
    def buffer_type(self) -> BufferType:
        return self._memory

    def _open(self, options: dict[str, Any]) -> Backend:
        return EmulatedBackend(self)

    def _supports(self, node: Tensor, source_types: Mapping[Tensor, BufferType]) -> bool | Refusal:
        if not node.size:
            return True
        answer = self.lower(node)
        return answer if isinstance(answer, Refusal) else True


def _after(tensor: Tensor) -> int:
    """Bytes from the start of a tensor to scratch memory behind it."""
    return -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
