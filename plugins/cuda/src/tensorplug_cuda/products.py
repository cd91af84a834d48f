"""Products that cuBLASLt computes in the place of a kernel, on one stream."""

from typing import TYPE_CHECKING, Any, cast

from tensorplug.errors import Unsupported
from tensorplug_cuda import lt
from tensorplug_cuda.errors import driver_errors
from tensorplug_cuda.kernels.library import LIBRARY_PRODUCT
from tensorplug_simt.merging import Placed

if TYPE_CHECKING:
    from tensorplug.buffer import Buffer
    from tensorplug_cuda.backend import CudaBackend
    from tensorplug_cuda.memory import CudaBuffer


class Products:
    """A handle of cuBLASLt and its workspace, both made when they are first wanted."""

    def __init__(self, backend: "CudaBackend") -> None:
        self._backend = backend
        self._handle: Any = None
        self._workspace: Buffer | None = None

    def of(self, placed: Placed) -> lt.Product | None:
        """The product that a launch stands for; None where its kernel has to do it."""
        if placed.launch.kernel is not LIBRARY_PRODUCT:
            return None
        backend = self._backend
        with driver_errors(f"{backend.name}: cuBLASLt"), backend.device.current():
            try:
                if self._handle is None:
                    self._handle = lt.new_handle()
                    self._workspace = backend.device.buffer_type.alloc(lt.WORKSPACE)
                workspace = cast("CudaBuffer", self._workspace).address
                return _product(self._handle, workspace, placed)
            except Unsupported:
                return None

    def close(self) -> None:
        """Give both back; no work may be left."""
        if self._workspace is not None:
            self._workspace.close()
        if self._handle is not None:
            lt.destroy_handle(self._handle)
        self._handle = self._workspace = None


def _product(handle: Any, workspace: int, placed: Placed) -> lt.Product:
    places = zip(placed.launch.regions.values(), placed.buffers, placed.offsets, strict=True)
    w, x, y = (
        lt.Matrix(
            cast("CudaBuffer", buffer).address + offset,
            region.dtype,
            region.ne[0],
            region.ne[1],
            region.nb[1] // region.dtype.size,
            region.nb[2] // region.dtype.size if region.ne[2] > 1 else 0,
        )
        for region, buffer, offset in places
    )
    return lt.Product(handle, workspace, w, x, y, placed.launch.regions["y"].ne[2])
