"""Compiled programs: built once per device and variant, and kept on disk.

CuPy's `RawModule` would do both, but it makes every program flush numbers below 2**-126 to zero.
"""

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import cupy
from cupy.cuda import compiler, driver, function, runtime

from tensorplug.device import DeviceError
from tensorplug.system.cache import Cache
from tensorplug_cuda.errors import driver_errors
from tensorplug_simt.built import Built
from tensorplug_simt.dialects.cuda import cuda_options, cuda_source, symbol
from tensorplug_simt.program import Launch

if TYPE_CHECKING:
    from tensorplug_cuda.device import CudaDevice

CACHE = Cache("cuda", ".cubin")
"""Programs by architecture, driver, options and text."""


class Programs(Built):
    """The compiled programs of one device. Thread-safe."""

    def __init__(self, device: "CudaDevice") -> None:
        super().__init__()
        self._device = device

    def kernel(self, launch: Launch, *, parts: int = 0, folded: bool = False) -> Any:
        """The function of `launch`, or of `parts` like it merged into one, or with a folded grid.

        Raises DeviceError with the compiler's log.
        """
        variant = (*launch.variant, parts, folded)
        return self.once(variant, lambda: self._build(launch, parts=parts, folded=folded))

    def _build(self, launch: Launch, *, parts: int, folded: bool) -> Any:
        text = cuda_source(launch, parts=parts, folded=folded)
        name, device = symbol(launch), self._device
        where = f"{device.name}: kernel {launch.kernel.name} {dict(launch.defines)}"
        options = tuple(cuda_options(launch))
        with driver_errors(where), device.current():
            file = self._file(text, options)
            kept = CACHE.read(file)
            if kept is not None:
                # The driver refuses what another build of it made: the program is built again.
                with suppress(driver.CUDADriverError):
                    return loaded(kept, name)
            binary = compiled(where, text, options)
            CACHE.write(file, binary)
            return loaded(binary, name)

    def _file(self, text: str, options: tuple[str, ...]) -> str:
        """The name under which the program of a text is kept."""
        capability = self._device.gpu.capability
        made = (cupy.__version__, runtime.driverGetVersion(), capability, options, text)
        return f"{hashlib.sha256(repr(made).encode()).hexdigest()[:32]}.cubin"


def compiled(where: str, text: str, options: tuple[str, ...]) -> bytes:
    """The binary of a text for the current GPU. Raises DeviceError."""
    try:
        binary, _ = compiler.compile_using_nvrtc(text, options)
    except compiler.CompileException as error:
        raise DeviceError(f"{where} cannot be compiled: {error}") from error
    except (runtime.CUDARuntimeError, driver.CUDADriverError):
        raise
    except RuntimeError as error:
        raise DeviceError(
            f"{where}: CuPy finds no compiler; pip install nvidia-cuda-nvrtc (CUDA 13) or "
            f"nvidia-cuda-nvrtc-cu12: {error}"
        ) from error
    return bytes(binary)


def loaded(binary: bytes, name: str) -> Any:
    """The function `name` of a program, on the current GPU."""
    module = function.Module()
    module.load(binary)
    return module.get_function(name)
