"""`CudaDevice`: a GPU, or one of several devices that share one."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast

from cupy import cuda

from tensorplug.device import Array, Backend, Buffer, DeviceType, Memory, Option, Place, Tensor
from tensorplug.device.ranges import Host
from tensorplug.dtypes import DType
from tensorplug_cuda.backend import CudaBackend
from tensorplug_cuda.collectives import all_reduce
from tensorplug_cuda.errors import driver_errors
from tensorplug_cuda.facts import Gpu
from tensorplug_cuda.handles import foreign_stream, new_stream
from tensorplug_cuda.hostmemory import PinnedBufferType, Registration, import_host
from tensorplug_cuda.importing import import_array
from tensorplug_cuda.kernels import KERNELS
from tensorplug_cuda.memory import CudaBuffer, CudaBufferType
from tensorplug_cuda.programs import Programs
from tensorplug_simt.device import SimtDevice
from tensorplug_simt.dialects.cuda import cuda_source
from tensorplug_simt.merging import Home
from tensorplug_simt.program import Launch

OWN = -1
"""The option `stream` for a new stream. 0 is CUDA's default stream, which PyTorch uses too."""
ENOUGH_ROWS = 32
"""Rows for which it pays to bring weights from the host over the bus."""
ROWS_OF: Mapping[str, int] = {"mul_mat": 1, "mul_mat_id": 2}
"""The dimension of the result that counts rows, of ops with weights."""


class CudaDevice(SimtDevice):
    """A GPU, or one of `shares` devices on the same GPU, each with its share of the memory."""

    backend_class = CudaBackend
    kernels = KERNELS
    suffix = ".cu"
    options: ClassVar[tuple[Option, ...]] = (
        Option(
            "stream",
            int,
            OWN,
            "address of a cudaStream_t of another library to queue work on, 0 for CUDA's default "
            "stream; -1: one of its own",
        ),
        Option(
            "streams",
            int,
            1,
            "the most streams that the branches of a captured plan use",
            choices=tuple(range(1, 9)),
        ),
    )

    def __init__(self, name: str, gpu: Gpu, *, share: int = 0, shares: int = 1) -> None:
        super().__init__(name)
        self.gpu = gpu
        self.ordinal = gpu.ordinal
        self.facts = gpu.facts
        self.total = gpu.memory // shares
        self._place = f", part {share + 1} of {shares}" if shares > 1 else ""
        self._shares = shares
        self._stream: Any = None
        self._memory: CudaBufferType = CudaBufferType(self)
        self._pinned = PinnedBufferType(self)
        self.programs = Programs(self)

    # --- facts -----------------------------------------------------------------------------

    @property
    def description(self) -> str:
        return f"{self.gpu.name}{self._place}"

    @property
    def type(self) -> DeviceType:
        return self.gpu.type

    @property
    def hardware_id(self) -> str:
        return self.gpu.pci

    @property
    def mmap(self) -> bool:
        # Pages of a file that the GPU shares with the host would be read twice.
        return not self.gpu.integrated

    def memory(self) -> Memory:
        with driver_errors(f"{self.name}: memory"), self.current():
            free, _ = cuda.runtime.memGetInfo()
        if self._shares > 1:
            free = min(free, self.total - self._allocated)
        return Memory(max(min(free, self.total), 0), self.total)

    # --- what the driver gives -------------------------------------------------------------

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the GPU the one that calls of this thread mean, inside."""
        self.check_process()
        with cuda.Device(self.ordinal):
            yield

    @contextmanager
    def moving(self, doing: str) -> Iterator[Any]:
        """A stream for a blocking transfer, which is over at the end. Raises DeviceError."""
        with driver_errors(doing), self.current():
            with self._lock:
                if self._stream is None:
                    self._stream = new_stream()
            yield self._stream
            self._stream.synchronize()

    # --- memory ----------------------------------------------------------------------------

    def home_of(self, buffer: Buffer) -> Home:
        # CUDA's addresses are the same for the host and all GPUs.
        return Host.MEMORY, cast("CudaBuffer", buffer).address

    def import_host(self, memory: Array, *, largest_tensor: int = 0) -> Buffer:
        """Compute on host memory where it lies, over the bus. Raises Unsupported."""
        return import_host(self._memory, memory)

    def import_array(self, name: str, array: Any, *, dtype: DType | str | None = None) -> Tensor:
        """A persistent tensor of another library's array on this GPU, without a copy.

        It comes by DLPack or `__cuda_array_interface__` and lives as long as the tensor's buffer.
        With `dtype` its bytes are elements of that type, `uint16` as bf16 for example. Work that
        still writes it is the caller's to wait for. Raises DeviceError, DTypeError, ShapeError.
        """
        return import_array(self._memory, name, array, dtype)

    def register_host(self, memory: Array) -> Registration:
        """Pin host memory where it lies, so that transfers of it are fast, until it is closed."""
        return Registration(self, memory)

    def _close(self) -> None:
        self._stream = None

    # --- work ------------------------------------------------------------------------------

    def text_of(self, launch: Launch) -> str:
        return cuda_source(launch)

    def offload(self, node: Tensor) -> bool:
        axis = ROWS_OF.get(node.op)
        return axis is not None and node.ne[axis] >= ENOUGH_ROWS

    def all_reduce(
        self, backends: Sequence[CudaBackend], places: Sequence[Place], node: Tensor
    ) -> bool:
        return all_reduce(backends, places, node)

    def _open(self, options: dict[str, Any]) -> Backend:
        with driver_errors(f"{self.name}: stream"), self.current():
            address = options["stream"]
            stream = new_stream() if address == OWN else foreign_stream(address)
            sides = [new_stream() for _ in range(options["streams"])]
        return CudaBackend(self, stream, sides)
