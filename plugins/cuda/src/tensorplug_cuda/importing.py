"""Arrays of other libraries as tensors, without a copy."""

from typing import Any

import cupy
from cupy.cuda import MemoryPointer, UnownedMemory

from tensorplug.device import BufferUsage, DeviceError, Place, Tensor, contiguous_nb
from tensorplug.dtypes import DType
from tensorplug.dtypes import dtype as dtype_of
from tensorplug.errors import DTypeError, ShapeError
from tensorplug.graph.tensor import MAX_RANK, ne_of
from tensorplug_cuda.errors import driver_errors
from tensorplug_cuda.memory import CudaBufferType, ForeignBuffer

ALIGNMENT = 16
"""An array starts at a multiple of this: kernels load 16 bytes at once."""


def import_array(
    buffer_type: CudaBufferType, name: str, array: Any, dtype: DType | str | None
) -> Tensor:
    """What `CudaDevice.import_array` says."""
    device = buffer_type.device
    where = f"{device.name}: array {name!r}"
    with driver_errors(where), device.current():
        known = hasattr(array, "__cuda_array_interface__")
        theirs = cupy.asarray(array) if known else cupy.from_dlpack(array)
    if theirs.device.id != device.ordinal:
        raise DeviceError(f"{where}: lies on GPU {theirs.device.id}, not on {device.ordinal}")
    tensor = _described(where, name, theirs, dtype_of(theirs.dtype if dtype is None else dtype))
    address = theirs.data.ptr
    if address % ALIGNMENT:
        raise ShapeError(
            f"{where}: starts {address % ALIGNMENT} bytes past a multiple of 16; copy it"
        )
    memory = UnownedMemory(address, max(tensor.nbytes, 1), theirs, device.ordinal)
    buffer = ForeignBuffer(
        buffer_type, max(tensor.nbytes, 1), BufferUsage.ANY, MemoryPointer(memory, 0)
    )
    return Tensor(
        tensor.dtype, tensor.ne, tensor.nb, tensor.rank, name=name, place=Place(buffer, 0)
    )


def _described(where: str, name: str, theirs: Any, kind: DType) -> Tensor:
    """The tensor that an array is, without memory."""
    size = kind.size if kind.is_block else kind.storage.itemsize
    unit = 1 if kind.is_block else size
    if theirs.dtype.itemsize != unit:
        raise DTypeError(f"{where}: elements of {theirs.dtype} are not {kind.name}")
    shape, strides = tuple(theirs.shape), tuple(theirs.strides)
    if any(stride < 0 for stride in strides):
        raise ShapeError(f"{where}: runs backwards in memory, strides {strides}; copy it")
    if kind.is_block:
        if not shape or shape[-1] % size or strides[-1] != 1:
            raise ShapeError(f"{where}: its rows are not blocks of {size} bytes of {kind.name}")
        shape, strides = (*shape[:-1], shape[-1] // size * kind.block), (*strides[:-1], size)
    ne, rank = ne_of(shape, where)
    rest = contiguous_nb(kind, ne)[rank:]
    a, b, c, d = (*reversed(strides), *rest)[:MAX_RANK]
    return Tensor(kind, ne, (a, b, c, d), rank, name=name)
