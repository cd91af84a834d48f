"""What the driver's errors are here."""

from collections.abc import Iterator
from contextlib import contextmanager

from cupy.cuda import driver, memory, runtime

from tensorplug.device import DeviceError, DeviceLost, OutOfMemory, TensorplugError

OUT_OF_MEMORY = 2
"""The status of an allocation that failed, in both of CUDA's interfaces."""
LOST = frozenset({4, 46, 100, 101, 214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719})
"""Statuses after which every call on the device fails: it went away, or a kernel of this process
made an illegal access, after which CUDA cannot go on."""


@contextmanager
def driver_errors(doing: str) -> Iterator[None]:
    """Raise our error for one of the driver's, chained."""
    try:
        yield
    except memory.OutOfMemoryError as theirs:
        raise OutOfMemory(f"{doing}: {theirs}") from theirs
    except (runtime.CUDARuntimeError, driver.CUDADriverError) as theirs:
        raise _kind(theirs.status)(f"{doing}: {theirs}") from theirs


def _kind(status: int) -> type[TensorplugError]:
    if status == OUT_OF_MEMORY:
        return OutOfMemory
    return DeviceLost if status in LOST else DeviceError
