"""The GPUs of a machine as devices. Imports CuPy and starts the driver."""

import logging
import os

import cupy
from cupy import cuda

from tensorplug.device import DeviceError, OptionError, TensorplugError
from tensorplug_cuda import cublaslt
from tensorplug_cuda.device import CudaDevice
from tensorplug_cuda.drivers import written
from tensorplug_cuda.errors import driver_errors
from tensorplug_cuda.facts import Gpu, gpu

logger = logging.getLogger("tensorplug.cuda")

EMULATED = "TENSORPLUG_CUDA_EMULATED"
"""How many devices each GPU is: more than one to try programs for several GPUs on one."""
NO_DEVICE = 100
"""CUDA's status where there is no GPU."""
MOST = 16
PROBE = 256
"""Bytes that are allocated on a GPU to see that it works."""


def devices() -> list[CudaDevice]:
    """Every GPU that works, in CUDA's order. Raises DeviceError where there are some and none does.

    Those that others hold exclusively, or that are broken, are left out with a warning.
    """
    shares, found = shares_wanted(), []
    errors: list[TensorplugError] = []
    for ordinal in range(count()):
        try:
            found.append(probed(ordinal))
        except TensorplugError as error:
            logger.warning("a GPU is left out: %s", error)
            errors.append(error)
    if errors and not found:
        raise DeviceError(f"no GPU works: {errors[0]}") from errors[0]
    parts = [(one, share) for one in found for share in range(shares)]
    return [
        CudaDevice(f"cuda:{i}", one, share=share, shares=shares)
        for i, (one, share) in enumerate(parts)
    ]


def count() -> int:
    """How many GPUs CUDA sees. Raises DeviceError."""
    try:
        return int(cuda.runtime.getDeviceCount())
    except cuda.runtime.CUDARuntimeError as error:
        if error.status == NO_DEVICE:
            return 0
        raise DeviceError(f"cuda: the driver does not start: {error}") from error


def probed(ordinal: int) -> Gpu:
    """The facts of a GPU, once some bytes of it could be allocated and cleared."""
    with driver_errors(f"GPU {ordinal}"), cuda.Device(ordinal):
        memory = cuda.MemoryPointer(cuda.Memory(PROBE), 0)
        cuda.runtime.memset(memory.ptr, 0, PROBE)
        cuda.Device(ordinal).synchronize()
        return gpu(ordinal)


def shares_wanted() -> int:
    """Devices for each GPU. Raises OptionError."""
    text = os.environ.get(EMULATED, "").strip() or "1"
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise OptionError(f"{EMULATED}={text!r}: a number of devices for each GPU, 1 to {MOST}")
    return int(text)


def features() -> dict[str, str]:
    """Versions, and architecture and identity of each GPU, for `tensorplug info`."""
    known = {
        "cupy": cupy.__version__,
        "cuda": written(cuda.runtime.runtimeGetVersion()),
        "driver": written(cuda.runtime.driverGetVersion()),
        "cublaslt": cublaslt.missing() or str(cublaslt.version()),
    }
    return known | {f"gpu {ordinal}": str(gpu(ordinal)) for ordinal in range(count())}
