"""A stand-in for a driver. Replace it by the binding of your driver and delete this file.

Memory is identified by handles, and the host cannot access it. All work is done before a function
returns. If a real driver queues work, `Backend._synchronize` must wait for it.
"""

import itertools

import numpy as np

CAPACITY = 1 << 30
"""The memory of each card, in bytes."""

_memory: dict[int, np.ndarray] = {}
_handles = itertools.count(1)


class DriverError(Exception):
    """The exception that the driver raises."""


def count() -> int:
    """The number of cards."""
    return 1


def used() -> int:
    """The number of allocated bytes."""
    return sum(block.nbytes for block in _memory.values())


def malloc(size: int) -> int:
    """Allocate uninitialised memory; returns its handle."""
    if used() + size > CAPACITY:
        raise DriverError(f"out of memory: {size} bytes wanted, {CAPACITY - used()} free")
    handle = next(_handles)
    _memory[handle] = np.empty(size, np.uint8)
    return handle


def wrap(memory: np.ndarray) -> int:
    """Register host memory with the card, without a copy; returns its handle."""
    handle = next(_handles)
    _memory[handle] = memory
    return handle


def free(handle: int) -> None:
    """Free memory."""
    del _memory[handle]


def upload(handle: int, offset: int, data: memoryview) -> None:
    """Copy from the host."""
    _memory[handle][offset : offset + data.nbytes] = data


def download(handle: int, offset: int, out: memoryview) -> None:
    """Copy to the host."""
    out[:] = _memory[handle][offset : offset + out.nbytes].data


def fill(handle: int, offset: int, size: int, value: int) -> None:
    """Set `size` bytes to `value`."""
    _memory[handle][offset : offset + size] = value


def copy(target: int, to: int, source: int, start: int, size: int) -> None:
    """Copy between two memories of cards."""
    _memory[target][to : to + size] = _memory[source][start : start + size].copy()


def view(
    handle: int, offset: int, kind: np.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> np.ndarray:
    """The elements in memory as an array, for kernels only. On a real card this is a pointer."""
    return np.ndarray(shape, kind, _memory[handle], offset, strides)


def launch(kernel: str, out: np.ndarray, *sources: np.ndarray, **numbers: float) -> None:
    """Run a kernel."""
    with np.errstate(all="ignore"):  # infinities and NaN are valid results
        _KERNELS[kernel](out, *sources, **numbers)


def _add(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    np.add(a, b, out)


def _mul(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    np.multiply(a, b, out)


def _scale(out: np.ndarray, x: np.ndarray, scale: float, bias: float) -> None:
    np.copyto(out, np.float32(scale) * x + np.float32(bias))


def _relu(out: np.ndarray, x: np.ndarray) -> None:
    np.maximum(x, 0, out=out)


def _copied(out: np.ndarray, x: np.ndarray) -> None:
    np.copyto(out, x)


def _mul_mat(out: np.ndarray, w: np.ndarray, x: np.ndarray) -> None:
    np.matmul(x, w.swapaxes(2, 3), out=out)


def _rms_norm(out: np.ndarray, x: np.ndarray, eps: float) -> None:
    mean = np.einsum("...i,...i->...", x, x)[..., None] / max(1, x.shape[-1])
    np.divide(x, np.sqrt(mean + np.float32(eps)), out)


_KERNELS = {
    "add": _add,
    "mul": _mul,
    "scale": _scale,
    "relu": _relu,
    "dup": _copied,
    "mul_mat": _mul_mat,
    "rms_norm": _rms_norm,
}
