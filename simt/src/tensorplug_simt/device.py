"""What devices whose work is lowered here have in common: support, memory, kernel texts.

A backend writes a subclass of `SimtDevice` with a subclass of `SimtBufferType` for its memory. Its
streams and plans ask `placing.place` for launches; what queues them is the backend's own.
"""

import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from tensorplug.device import (
    Buffer,
    BufferType,
    BufferUsage,
    Device,
    Group,
    HostBuffer,
    KernelText,
    Memory,
    OutOfMemory,
    Pattern,
    Refusal,
    Rounding,
    Tensor,
    Unsupported,
)
from tensorplug.fusion.library import named
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import lower, lower_group
from tensorplug_simt.merging import Home
from tensorplug_simt.placing import ALIGNMENT, scratch_start
from tensorplug_simt.program import Launch, Program
from tensorplug_simt.settings import is_portable
from tensorplug_simt.table import PORTABLE, Kernels

LOADED = 16
"""Bytes that kernels load at once, at multiples of them."""


class SimtDevice(Device):
    """A device that computes what its tables lower.

    Subclasses set `facts`, `total` and `_memory` when they are made; their memory asks `need`
    before it takes some, and tells `count` when it has taken it and when it gives it back.
    """

    total: int
    """Bytes of memory that it may take."""
    facts: Facts
    """What lowerings know of the hardware."""
    kernels: Kernels = PORTABLE
    """What it computes with; `PORTABLE` where the user's setting leaves out the backend's own."""
    suffix: ClassVar[str] = ".txt"
    """The suffix of a file with a kernel's text."""
    _memory: BufferType
    """Where its kernels work."""
    _pinned: BufferType | None = None
    """Memory of the host that it reaches, or that transfers fast."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._lock = threading.RLock()
        self._allocated = 0
        if is_portable(name.partition(":")[0]):
            self.kernels = PORTABLE

    # --- memory ----------------------------------------------------------------------------

    @property
    def buffer_type(self) -> BufferType:
        return self._memory

    @property
    def host_buffer_type(self) -> BufferType | None:
        return self._pinned

    def memory(self) -> Memory:
        return Memory(max(self.total - self._allocated, 0), self.total)

    def count(self, size: int) -> None:
        """Remember that `size` more bytes are allocated; fewer where it is negative."""
        with self._lock:
            self._allocated += size

    def need(self, size: int) -> None:
        """Raise OutOfMemory where `size` bytes more are more than `total`."""
        free = max(self.total - self._allocated, 0)
        if size > free:
            raise OutOfMemory(f"{self.name}: {size} bytes needed, {free} available")

    def need_aligned(self, address: int) -> None:
        """Raise Unsupported for memory of others whose elements kernels could not load."""
        if address % LOADED:
            raise Unsupported(
                f"{self.name}: memory that starts {address % LOADED} bytes past a multiple of "
                f"{LOADED}, which kernels load at once; place() copies it"
            )

    def reaches(self, buffer: Buffer) -> bool:
        """Whether kernels of this device can work in `buffer`, which may be of any backend."""
        return isinstance(buffer, SimtBuffer) and buffer.device is self

    def may_write(self, buffer: Buffer) -> bool:
        """Whether `buffer` is other than host memory that was imported and is read-only."""
        if isinstance(buffer, HostBuffer):
            return bool(buffer.host().flags.writeable)
        return not (isinstance(buffer, SimtBuffer) and buffer.read_only)

    def need_writeable(self, buffer: Buffer) -> None:
        """Raise Unsupported for read-only memory, where a write would end the process."""
        if not self.may_write(buffer):
            raise Unsupported(f"{buffer!r}: is read-only memory")

    def home_of(self, buffer: Buffer) -> Home:
        """What the bytes of `buffer` are counted in, and where it starts in that.

        Two buffers may lie over the same memory: they have it in common.
        """
        return buffer, 0

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type is self.buffer_type

    # --- work ------------------------------------------------------------------------------

    @cached_property
    def fusions(self) -> Sequence[Pattern]:
        """The patterns of groups that have a kernel."""
        return named(self.kernels.groups)

    def rounding(self, node: Tensor) -> Rounding:
        return self.kernels.rounding(node, self.facts)

    def lower(self, node: Tensor) -> Program | Refusal:
        """The launches of a node that is not a view, or why there are none."""
        return lower(node, self.facts, self.kernels.ops)

    def lower_work(self, work: Tensor | Group) -> Program | Refusal:
        """The launches of a node or group of nodes, or why there are none."""
        return self.lower(work) if isinstance(work, Tensor) else self._lower_group(work)

    def _lower_group(self, group: Group) -> Program | Refusal:
        return lower_group(group, self.facts, self.kernels.groups)

    @abstractmethod
    def text_of(self, launch: Launch) -> str:
        """The complete text of the kernel of `launch`, as the device's compiler gets it."""

    def kernel_texts(self, node: Tensor) -> Sequence[KernelText]:
        """The complete texts of the kernels that compute `node`; none where it is refused."""
        program = self.lower(node)
        lowering = self.kernels.ops.get(node.op)
        return [
            KernelText(
                launch.kernel.name,
                launch.kernel.file,
                f"{lowering.__module__}.{lowering.__qualname__}" if lowering else "",
                {role: dtype.name for role, dtype in launch.types.items()},
                dict(launch.defines),
                launch.kernel.signature,
                self.text_of(launch),
                self.suffix,
            )
            for launch in (program.launches if isinstance(program, Program) else ())
        ]

    def scratch(self, node: Tensor) -> int:
        """Bytes of scratch memory that the kernels of `node` need, or of a group that it ends."""
        program = self.lower(node)
        if isinstance(program, Refusal):
            return 0
        return max(program.scratch, self.kernels.group_scratch(node, self.facts))

    def _refuses(self, node: Tensor, source_types: Mapping[Tensor, BufferType]) -> Refusal | None:
        if not node.size:
            return None
        lowered = self.lower(node)
        return lowered if isinstance(lowered, Refusal) else None

    def _refuses_group(
        self, group: Group, source_types: Mapping[Tensor, BufferType]
    ) -> Refusal | None:
        lowered = self._lower_group(group)
        return lowered if isinstance(lowered, Refusal) else None


class SimtBufferType(BufferType):
    """Memory of such a device. Scratch memory of a tensor's kernels follows the tensor."""

    device: SimtDevice
    alignment = ALIGNMENT

    def __init__(self, device: SimtDevice) -> None:
        super().__init__(device)
        self.name = device.name

    def _alloc_size(self, tensor: Tensor) -> int:
        if tensor.op == "none":
            return tensor.nbytes
        return scratch_start(tensor) + self.device.scratch(tensor)


class SimtBuffer(Buffer):
    """Memory of such a device, which counts it until the buffer is closed."""

    type: SimtBufferType
    read_only = False
    """Whether it lies over host memory that must not be written."""

    def __init__(
        self, buffer_type: SimtBufferType, size: int, usage: BufferUsage, memory: Any
    ) -> None:
        super().__init__(buffer_type, size, usage)
        self.device = buffer_type.device
        self.memory = memory
        """What the driver calls it by; None once the buffer is closed."""
        self._count(size)

    def _count(self, size: int) -> None:
        self.device.count(size)

    def _close(self) -> None:
        self._count(-self.size)
        self.memory = None
