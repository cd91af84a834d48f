"""A stand-in for CuPy where there is no GPU: the calls that the cuda backend makes, and no others.

Results that come of it are *emulated*. It is stricter than CUDA is: see `_machine`.
"""

from typing import Any

import numpy as np

from cupy import cuda
from cupy._machine import machine, view

__version__ = "emulated"
EMULATED = True

__all__ = ["asarray", "cuda", "empty", "from_dlpack", "ndarray"]


class ndarray:
    """An array in memory of a GPU."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any = float,
        memptr: Any = None,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        like = np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, strides)
        plain = np.empty(0, dtype)
        self.shape, self.dtype = tuple(shape), plain.dtype
        self.strides = np.empty(shape, dtype).strides if strides is None else tuple(like.strides)
        self.size, self.nbytes = like.size, like.size * plain.itemsize
        self.data = memptr or cuda.MemoryPointer(cuda.Memory(max(self.nbytes, 1)), 0)
        self.device = cuda.Device(self.data.device_id)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct "
            "a NumPy array explicitly."
        )

    @property
    def __cuda_array_interface__(self) -> "dict[str, Any]":
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "strides": self.strides,
            "data": (self.data.ptr, False),
            "version": 3,
        }

    def __dlpack__(self, **_: Any) -> "Capsule":
        return Capsule(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self.device.id)

    def get(self) -> Any:
        """A copy on the host of the bytes as they are now, without waiting for streams."""
        return self._window().copy()

    def set(self, array: Any) -> None:
        """Take the bytes of an array of the host, without waiting for streams."""
        self._window()[...] = array

    def _window(self) -> Any:
        machine.no_capture("an array is copied")
        span = sum((n - 1) * abs(b) for n, b in zip(self.shape, self.strides, strict=True))
        machine.on_gpu(self.data.ptr, span + self.dtype.itemsize)
        memory = view(self.data.ptr, span + self.dtype.itemsize)
        return np.ndarray(self.shape, self.dtype, memory, 0, self.strides)


class Capsule:
    """What the stand-in passes from array to array in place of DLPack's structure."""

    def __init__(self, array: ndarray) -> None:
        self.array = array


def empty(shape: Any, dtype: Any = float) -> ndarray:
    """An array with memory of its own."""
    return ndarray((shape,) if isinstance(shape, int) else tuple(shape), dtype)


def asarray(a: Any) -> ndarray:
    """An array of the GPU as it is, or a view of what has `__cuda_array_interface__`."""
    if isinstance(a, ndarray):
        return a
    known = getattr(a, "__cuda_array_interface__", None)
    if known is None:
        made = empty(np.shape(a), np.asarray(a).dtype)
        made.set(np.asarray(a))
        return made
    dtype, shape = np.dtype(known["typestr"]), known["shape"]
    size = max(int(np.prod(shape)) * dtype.itemsize, 1)
    memory = cuda.UnownedMemory(known["data"][0], size, a)
    return ndarray(shape, dtype, cuda.MemoryPointer(memory, 0), known.get("strides"))


def from_dlpack(x: Any) -> ndarray:
    """A view of an array of another library."""
    if x.__dlpack_device__()[0] != 2:
        raise BufferError("not memory of a GPU")
    other = x.__dlpack__().array
    return ndarray(other.shape, other.dtype, other.data, other.strides)
