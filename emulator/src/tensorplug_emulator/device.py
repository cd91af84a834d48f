"""`EmulatedDevice`: the lowering and the kernels of a backend, on the processor."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np

from tensorplug.device import (
    ArrayBuffer,
    Backend,
    Buffer,
    BufferType,
    BufferUsage,
    DeviceType,
    Tensor,
)
from tensorplug.device.plan import NodePlan
from tensorplug_emulator.emulator import Emulator
from tensorplug_simt.backend import SimtBackend
from tensorplug_simt.device import SimtBufferType, SimtDevice
from tensorplug_simt.facts import Facts
from tensorplug_simt.merging import Placed
from tensorplug_simt.placing import ALIGNMENT
from tensorplug_simt.program import Launch, Program
from tensorplug_simt.source import source
from tensorplug_simt.table import PORTABLE, Kernels

CAPACITY = 1 << 30
"""Bytes of a device; no more than a number, since memory is the host's."""


class EmulatedBuffer(ArrayBuffer):
    """Host memory that only kernels and transfers reach."""

    def __init__(self, buffer_type: BufferType, size: int, usage: BufferUsage) -> None:
        room = np.full(size + ALIGNMENT, 0xFF, np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        super().__init__(buffer_type, room[start : start + size], usage)

    @property
    def address(self) -> int:
        """Of its first byte."""
        return int(self._memory.ctypes.data)

    def _copy_from(self, source: Buffer, start: int, offset: int, size: int) -> bool:
        if not isinstance(source, EmulatedBuffer):
            return False
        self._memory[offset : offset + size] = source._memory[start : start + size].copy()
        return True


class EmulatedBufferType(SimtBufferType):
    """Memory of the emulated device."""

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        return EmulatedBuffer(self, size, usage)


class EmulatedBackend(SimtBackend):
    """Work is done at once."""

    device: "EmulatedDevice"
    plan_class = NodePlan

    def ready(self, launches: Sequence[Sequence[Placed]]) -> Sequence[Placed]:
        placed = [part for parts in launches for part in parts]
        self.device.emulator.prepare(part.launch for part in placed)
        return placed

    def enqueue(self, launches: Sequence[Placed]) -> None:
        emulator = self.device.emulator
        for part in launches:
            addresses = [cast("EmulatedBuffer", buffer).address for buffer in part.buffers]
            places = zip(addresses, part.offsets, strict=True)
            emulator.run(part.launch, dict(zip(part.launch.regions, places, strict=True)))


class EmulatedDevice(SimtDevice):
    """Kernels of a table of lowerings, as a device with `facts` would run them."""

    backend_class = EmulatedBackend

    def __init__(
        self,
        name: str = "emulated:0",
        *,
        emulator: Emulator | None = None,
        facts: Facts = Facts(wide=False),  # noqa: B008 - frozen
        kernels: Kernels = PORTABLE,
    ) -> None:
        super().__init__(name)
        self.emulator = emulator or Emulator()
        self.total = CAPACITY
        self.facts = facts
        self.kernels = kernels
        self._memory = EmulatedBufferType(self)

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

    def text_of(self, launch: Launch) -> str:
        return source(launch, self.emulator.dialect)

    def reaches(self, buffer: Buffer) -> bool:
        return isinstance(buffer, EmulatedBuffer)

    def _open(self, options: dict[str, Any]) -> Backend:
        return EmulatedBackend(self)
