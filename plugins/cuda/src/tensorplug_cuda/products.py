"""Products that cuBLASLt computes in place of a kernel, on one stream."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from tensorplug.device import OutOfMemory, Unsupported
from tensorplug_cuda import cublaslt
from tensorplug_cuda.errors import driver_errors
from tensorplug_cuda.kernels.library import LIBRARY_PRODUCT
from tensorplug_simt.merging import Placed

if TYPE_CHECKING:
    from tensorplug.device import Buffer
    from tensorplug_cuda.backend import CudaBackend
    from tensorplug_cuda.memory import CudaBuffer

RECIPES = 256
"""Shapes of products that are remembered: asking cuBLASLt takes the host's time."""


class Products:
    """A handle of cuBLASLt and its workspace, both made for the first product."""

    def __init__(self, backend: "CudaBackend") -> None:
        self._backend = backend
        self._handle: Any = None
        self._workspace: Buffer | None = None
        # A handle has no hash.
        self._recipe = lru_cache(maxsize=RECIPES)(
            lambda *shape: cublaslt.Recipe(self._handle, *shape)
        )

    def of(self, placed: Placed) -> cublaslt.Product | None:
        """The product that a launch stands for; None where its kernel has to compute it."""
        if placed.launch.kernel is not LIBRARY_PRODUCT or cublaslt.missing():
            return None
        backend = self._backend
        with driver_errors(f"{backend.name}: cuBLASLt"), backend.device.current():
            try:
                if self._workspace is None:
                    self._workspace = backend.device.buffer_type.alloc(cublaslt.WORKSPACE)
                if self._handle is None:
                    self._handle = cublaslt.new_handle()
                return self._product(placed)
            except (Unsupported, OutOfMemory):
                return None

    def close(self) -> None:
        """Give both back; no work may be left."""
        self._recipe.cache_clear()
        if self._workspace is not None:
            self._workspace.close()
        if self._handle is not None:
            cublaslt.destroy_handle(self._handle)
        self._handle = self._workspace = None

    def _product(self, placed: Placed) -> cublaslt.Product:
        places = zip(placed.launch.regions.values(), placed.buffers, placed.offsets, strict=True)
        w, x, y = (
            cublaslt.Matrix(
                cast("CudaBuffer", buffer).address + offset,
                region.dtype,
                region.ne[0],
                region.ne[1],
                region.nb[1] // region.dtype.size,
                region.nb[2] // region.dtype.size if region.ne[2] > 1 else 0,
            )
            for region, buffer, offset in places
        )
        batch = placed.launch.regions["y"].ne[2]
        recipe = self._recipe(w.layout, x.layout, y.layout, batch)
        workspace = cast("CudaBuffer", self._workspace).address
        return cublaslt.Product(self._handle, workspace, recipe, w, x, y)


def apart(launches: Sequence[tuple[Placed, ...]]) -> Iterator[tuple[Placed, ...]]:
    """The same launches; those that cuBLASLt may compute are not merged, where it is installed."""
    whole = bool(cublaslt.missing())
    for parts in launches:
        if whole or parts[0].launch.kernel is not LIBRARY_PRODUCT:
            yield parts
        else:
            yield from ((part,) for part in parts)
