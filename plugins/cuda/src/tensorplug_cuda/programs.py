"""Compiled programs: built once per device and variant, kept on disk by CuPy.

CuPy's files belong to one architecture, compiler, text and options; where they lie, its variable
CUPY_CACHE_DIR says.
"""

import threading
from typing import TYPE_CHECKING, Any

from cupy import RawModule
from cupy.cuda.compiler import CompileException

from tensorplug.errors import DeviceError
from tensorplug_cuda.errors import driver_errors
from tensorplug_simt.dialects.cuda import cuda_options, cuda_source
from tensorplug_simt.program import Launch

if TYPE_CHECKING:
    from tensorplug_cuda.device import CudaDevice


class Programs:
    """The compiled programs of one device. Thread-safe."""

    def __init__(self, device: "CudaDevice") -> None:
        self._device = device
        self._built: dict[tuple[object, ...], Any] = {}
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many programs were built or loaded."""
        return len(self._built)

    def kernel(self, launch: Launch, *, parts: int = 0, folded: bool = False) -> Any:
        """The function of `launch`, or of `parts` like it merged into one, or with a folded grid.

        Raises DeviceError with the compiler's log.
        """
        variant = (*launch.variant, parts, folded)
        with self._lock:
            kernel = self._built.get(variant)
            if kernel is None:
                text = cuda_source(launch, parts=parts, folded=folded)
                kernel = self._built[variant] = self._build(launch, text)
        return kernel

    def _build(self, launch: Launch, text: str) -> Any:
        name, device = launch.kernel.name, self._device
        where = f"{device.name}: kernel {name} {dict(launch.defines)}"
        module = RawModule(code=text, options=tuple(cuda_options(launch)))
        try:
            with driver_errors(where), device.current():
                # The function of this device, not the wrapper that looks for it at each call.
                return module.get_function(name).kernel
        except CompileException as error:
            raise DeviceError(f"{where} cannot be compiled: {error}") from error
        except RuntimeError as error:
            if "nvrtc" not in str(error):
                raise
            raise DeviceError(
                f"{where}: CuPy finds no compiler; pip install nvidia-cuda-nvrtc (CUDA 13) or "
                f"nvidia-cuda-nvrtc-cu12: {error}"
            ) from error
