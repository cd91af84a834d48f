"""`MetalDevice`: a GPU of a Mac."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from tensorplug.device import Array, Backend, Buffer, BufferType, DeviceType, Memory, Option
from tensorplug_metal.backend import COMMAND_BUFFERS, MetalBackend
from tensorplug_metal.barriers import home_of
from tensorplug_metal.facts import Gpu
from tensorplug_metal.kernels import KERNELS
from tensorplug_metal.memory import MetalBufferType, OnGpu, imported
from tensorplug_metal.programs import Programs
from tensorplug_metal.residency import Residency
from tensorplug_metal.work import WorkQueue
from tensorplug_simt.device import SimtDevice
from tensorplug_simt.dialects.metal import metal_source
from tensorplug_simt.merging import Home
from tensorplug_simt.program import Launch


class MetalDevice(SimtDevice):
    """A GPU, and `handle`, which is Metal's own object of it."""

    backend_class = MetalBackend
    kernels = KERNELS
    suffix = ".metal"
    options: ClassVar[tuple[Option, ...]] = (
        COMMAND_BUFFERS,
        Option("concurrent", bool, default=True, help="run launches at once that need no barrier"),
        Option("indirect", bool, default=True, help="record plans that run again"),
    )

    def __init__(self, name: str, handle: Any, gpu: Gpu) -> None:
        super().__init__(name)
        self.handle = handle
        self.gpu = gpu
        self.facts = gpu.facts
        self.total = gpu.working_set
        self.residency = Residency(handle, name)
        self._transfers = threading.RLock()
        self._moving: WorkQueue | None = None
        self.private = MetalBufferType(self, private=True)
        """Memory that the host does not see."""
        self._memory: MetalBufferType = MetalBufferType(self, private=False)
        self._pinned = self._memory  # Apple's GPUs share the memory of the host
        self.programs = Programs(self)

    # --- facts -----------------------------------------------------------------------------

    @property
    def description(self) -> str:
        return self.gpu.name

    @property
    def type(self) -> DeviceType:
        return DeviceType.IGPU

    def memory(self) -> Memory:
        # Other libraries of the process take of it, too.
        taken = max(self.handle.currentAllocatedSize(), self._allocated)
        return Memory(max(self.total - taken, 0), self.total)

    # --- memory ----------------------------------------------------------------------------

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        return (self.private,)

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type in (self._memory, self.private)

    def reaches(self, buffer: Buffer) -> bool:
        return isinstance(buffer, OnGpu) and buffer.owner is self

    def home_of(self, buffer: Buffer) -> Home:
        return home_of(buffer)

    def import_host(self, memory: Array, *, largest_tensor: int = 0) -> Buffer:
        """Compute on host memory where it lies.

        Memory beyond the largest buffer is seen through several that overlap, so that tensors of
        at most `largest_tensor` bytes lie whole in one. Raises Unsupported, ShapeError.
        """
        return imported(self._memory, memory, largest_tensor=largest_tensor)

    @contextmanager
    def moving(self, doing: str) -> Iterator[Any]:
        """An encoder for blocking copies, which are over at the end. Raises DeviceError."""
        with self._transfers:
            if self._moving is None:
                self._moving = WorkQueue(self, f"{self.name} transfers")
            work = self._moving
            try:
                with work.commands(doing) as commands, work.blit(commands) as encoder:
                    yield encoder
                work.finish()
            except BaseException:
                # A queue that has failed takes no more work: the next transfer has a new one.
                self._moving = None
                raise

    def _close(self) -> None:
        self._moving = None
        self.residency.close()

    # --- work ------------------------------------------------------------------------------

    def text_of(self, launch: Launch) -> str:
        return metal_source(launch)

    def _open(self, options: dict[str, Any]) -> Backend:
        return MetalBackend(self, options)
