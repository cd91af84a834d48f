"""Arrays of other libraries as NumPy arrays, through DLPack."""

import ctypes
from typing import Any

import numpy as np

from tensorplug.dtypes import BF16, DType, DTypeLike
from tensorplug.dtypes import dtype as dtype_of
from tensorplug.errors import DTypeError, ShapeError
from tensorplug.graph.tensor import Array

HOST = frozenset({1, 3, 11, 13})
"""DLPack's numbers of memory that the host reads: plain, of CUDA, of ROCm, and managed by CUDA."""


def as_host(data: Any, dtype: DTypeLike | None = None) -> tuple[Array, DType]:
    """Return `data` as a NumPy array for a tensor of `dtype`, and the type.

    The type of the data is the default. Memory that the host can read is not copied; memory of a
    device is copied to the host once. bf16 becomes uint16 for tensors of bf16, and f32 for others.
    Raises DTypeError, ShapeError.
    """
    array = data if isinstance(data, np.ndarray) else _array(data)
    if array is data and array.dtype.isbuiltin:  # inputs of each run: a name takes microseconds
        return array, dtype_of(array.dtype if dtype is None else dtype)
    if str(array.dtype) == "bfloat16":  # of the package ml_dtypes
        array = array.view(np.uint16)
    elif not is_bf16(data):
        return array, dtype_of(array.dtype if dtype is None else dtype)
    kind = BF16 if dtype is None else dtype_of(dtype)
    if kind is not BF16 and not kind.is_block:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array, kind


def is_on_host(data: Any) -> bool:
    """True if the host reads the memory of `data`, which may be of any library."""
    return not hasattr(data, "__dlpack_device__") or data.__dlpack_device__()[0] in HOST


def is_bf16(data: Any) -> bool:
    """True for arrays of bf16, a type that NumPy does not have."""
    return str(getattr(data, "dtype", "")).rpartition(".")[2] == "bfloat16"


def _array(data: Any) -> Array:
    if not hasattr(data, "__dlpack__"):
        try:
            return np.asarray(data)
        except ValueError as error:  # lists of several lengths
            raise ShapeError(
                f"data of {type(data).__name__} is not an array of one shape: {error}"
            ) from error
    source = _Bits(data) if is_bf16(data) else data
    remedy = ""
    try:
        if is_on_host(data):
            return np.from_dlpack(source)
        remedy = "; its memory is a device's, so copy it to the host"
        return np.from_dlpack(source, device="cpu", copy=True)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        kind = f"{type(data).__module__}.{type(data).__name__}"
        raise DTypeError(
            f"data of {kind} cannot be read through DLPack: {error}{remedy}"
        ) from error


class _DLTensor(ctypes.Structure):
    """The first fields of DLPack's structure of an array."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


class _Bits:
    """An array of bf16 that DLPack exports as uint16."""

    _UINT, _BFLOAT = 1, 4

    def __init__(self, data: Any) -> None:
        self._data = data

    def __dlpack_device__(self) -> Any:
        return self._data.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        # A version would give another structure, which begins with the version.
        options.pop("max_version", None)
        capsule = self._data.__dlpack__(**{k: v for k, v in options.items() if v is not None})
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        tensor = _DLTensor.from_address(pointer(capsule, b"dltensor"))
        if (tensor.code, tensor.bits) == (self._BFLOAT, 16):
            tensor.code = self._UINT
        return capsule
