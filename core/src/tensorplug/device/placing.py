"""Memory for persistent tensors: for one tensor, or for many in as few buffers as possible.

Also the conversion of values to what is stored, and back.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensorplug.device.buffer import Buffer, BufferType, BufferUsage, MultiBuffer, as_bytes
from tensorplug.device.foreign import as_host
from tensorplug.dtypes import DType, DTypeLike
from tensorplug.errors import (
    BufferTooLarge,
    DTypeError,
    GraphError,
    OutOfMemory,
    ShapeError,
    Unsupported,
)
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Array, Place, Tensor, array_view, leaf

NOWHERE = Bindings()
"""For tensors that have places of their own."""
Alloc = Callable[[int, Sequence[Tensor]], Buffer]
"""A function that makes a buffer of at least the given number of bytes for the given tensors."""


def align(size: int, alignment: int) -> int:
    """Round `size` up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment


class LinearAllocator:
    """Places tensors one after another in a buffer."""

    def __init__(self, buffer: Buffer) -> None:
        alignment = buffer.type.alignment
        if alignment < 1 or alignment & (alignment - 1):
            raise ShapeError(f"{buffer.type!r}: alignment {alignment} is not a power of two")
        self.buffer = buffer
        self.used = 0

    def place(self, tensor: Tensor) -> Tensor:
        """Return `tensor` with a place in the buffer. Raises OutOfMemory when it is full."""
        _check_placeable(tensor, self.buffer.type)
        size = align(self.buffer.type.alloc_size(tensor), self.buffer.type.alignment)
        if self.used + size > self.buffer.size:
            raise OutOfMemory(
                f"{self.buffer!r}: no room for {tensor}: {size} bytes needed, "
                f"{self.buffer.size - self.used} of {self.buffer.size} left; allocate a larger one"
            )
        placed = replace(tensor, place=Place(self.buffer, self.used))
        self.buffer.init_tensor(placed, self.used)
        self.used += size
        return placed


def buffer_sizes(tensors: Sequence[Tensor], buffer_type: BufferType) -> list[int]:
    """The size in bytes of each buffer that `allocate` would make. Allocates nothing."""
    return [size for size, _ in _batches(_homeless(tensors), buffer_type)]


def allocate(
    tensors: Sequence[Tensor],
    buffer_type: BufferType,
    *,
    usage: BufferUsage = BufferUsage.ANY,
    alloc: Alloc | None = None,
) -> tuple[list[Tensor], MultiBuffer]:
    """Return `tensors` (leafs) with places, in order, and the buffers that hold them.

    Tensors that have a place already keep it. The others are placed in order; a new buffer starts
    when the largest buffer of the type is full. If given, `alloc` makes the buffers instead of
    `buffer_type.alloc`. If an allocation fails, earlier buffers are freed and the error is raised.
    """
    made: list[Buffer] = []
    placed: dict[Tensor, Tensor] = {}
    make = alloc or (lambda size, batch: buffer_type.alloc(size, usage, tensors=batch))
    try:
        for size, batch in _batches(_homeless(tensors), buffer_type):
            made.append(make(size, batch))
            linear = LinearAllocator(made[-1])
            placed |= {tensor: linear.place(tensor) for tensor in batch}
    except BaseException:
        for buffer in made:
            buffer.close()
        raise
    return [placed.get(tensor, tensor) for tensor in tensors], MultiBuffer(made)


def place(
    name: str,
    data: Array | Sequence[Any],
    buffer_type: BufferType,
    *,
    usage: BufferUsage = BufferUsage.ANY,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """Return a persistent tensor with a copy of `data` in a buffer of its own.

    `data` is an array of any library with DLPack, or anything that NumPy makes an array of. The
    type is `dtype`, by default that of `data`; `host_data` describes the data for each type.
    """
    array, kind = as_host(data, dtype)
    spec = _spec(name, array, kind)
    _check_placeable(spec, buffer_type)
    stored = host_data(spec, array)
    size = align(buffer_type.alloc_size(spec), buffer_type.alignment)
    buffer = buffer_type.alloc(size, usage, tensors=[spec])
    try:
        placed = LinearAllocator(buffer).place(spec)
        buffer.write_tensor(placed, 0, as_bytes(stored))
    except BaseException:
        buffer.close()
        raise
    return placed


def _spec(name: str, array: Array, kind: DType) -> Tensor:
    shape = array.shape
    if kind.is_block and array.dtype != kind.storage:
        raise DTypeError(
            f"{name}: takes the stored blocks of {kind.name} as {kind.storage}, got {array.dtype}; "
            "encode the values first, or cast() them in a graph"
        )
    if kind.is_block and shape:
        if shape[-1] % kind.size:
            raise ShapeError(
                f"{name}: rows of {kind.name} are whole blocks of {kind.size} bytes, got rows of "
                f"{shape[-1]} bytes"
            )
        shape = (*shape[:-1], shape[-1] // kind.size * kind.block)
    return leaf(name, shape, kind)


def host_data(tensor: Tensor, data: Any) -> Array:
    """Return `data` as the contiguous array that is stored for `tensor`.

    `data` may be an array of any library with DLPack (`as_host`). Floats are converted to floats
    and integers to integers (float64 to f32; int64 to i32 if the values fit). bf16 takes uint16 or
    an array of bf16; block types take stored bytes as uint8, with the last size in
    bytes per row. Raises ShapeError, DTypeError.
    """
    array, _ = as_host(data, tensor.dtype)
    shape, kind = tensor.shape, tensor.dtype.storage
    if tensor.dtype.is_block:
        shape = (*tensor.shape[:-1], tensor.dtype.row_size(tensor.ne[0]))
    if array.shape != shape:
        raise ShapeError(f"{tensor}: takes data of shape {shape}, got {array.shape}")
    if array.dtype != kind:
        array = _converted(tensor, array, kind)
    # ascontiguousarray() is not used here because it turns a scalar into a vector.
    return np.asarray(array, order="C")


def read(tensor: Tensor, bindings: Bindings = NOWHERE) -> Array:
    """Return a copy of the tensor's data, with the shape and type of `Tensor.numpy`."""
    place = bindings.where(tensor)
    span = np.empty(tensor.nbytes, np.uint8)
    if tensor.size:
        place.buffer.read_tensor(tensor, place.offset, as_bytes(span))
    view = array_view(tensor, span, 0)
    return view if tensor.is_contiguous else np.ascontiguousarray(view)


def _converted(tensor: Tensor, array: Array, kind: "np.dtype[np.generic]") -> Array:
    if tensor.dtype.numpy is None:
        raise DTypeError(
            f"{tensor}: takes the stored bits of {tensor.dtype.name} as {kind}, got {array.dtype}; "
            "encode the values first, or cast() them in a graph"
        )
    if not np.can_cast(array.dtype, kind, "same_kind"):
        raise DTypeError(
            f"{tensor}: takes {kind} data, got {array.dtype}; convert it with "
            f".astype({kind.name!r})"
        )
    converted = array.astype(kind)
    if kind.kind == "i" and not np.array_equal(converted, array):
        raise DTypeError(f"{tensor}: values from {array.min()} to {array.max()} do not fit {kind}")
    return converted


def place_in(tensor: Tensor, buffer: Buffer, offset: int) -> Tensor:
    """Return `tensor` (a leaf) placed at `offset` of `buffer`, checked against its size."""
    _check_placeable(tensor, buffer.type)
    size = buffer.type.alloc_size(tensor)
    if offset % buffer.type.alignment or offset < 0 or offset + size > buffer.size:
        raise ShapeError(
            f"{buffer!r}: {tensor} cannot lie at byte {offset}: needs {size} bytes at a multiple "
            f"of {buffer.type.alignment}, the buffer has {buffer.size}"
        )
    placed = replace(tensor, place=Place(buffer, offset))
    buffer.init_tensor(placed, offset)
    return placed


def _batches(tensors: Sequence[Tensor], buffer_type: BufferType) -> list[tuple[int, list[Tensor]]]:
    batches: list[tuple[int, list[Tensor]]] = []
    for tensor in tensors:
        _check_placeable(tensor, buffer_type)
        size = align(buffer_type.alloc_size(tensor), buffer_type.alignment)
        if size > buffer_type.max_size:
            raise BufferTooLarge(f"{buffer_type.name}: {tensor}", size, buffer_type.max_size)
        if batches and batches[-1][0] + size <= buffer_type.max_size:
            total, batch = batches[-1]
            batch.append(tensor)
            batches[-1] = (total + size, batch)
        else:
            batches.append((size, [tensor]))
    return batches or [(0, [])]


def _homeless(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors without a place, each once."""
    return [tensor for tensor in dict.fromkeys(tensors) if tensor.place is None]


def _check_placeable(tensor: Tensor, buffer_type: BufferType) -> None:
    if not tensor.is_leaf or tensor.place is not None:
        raise GraphError(f"{tensor}: only leafs without memory can be placed")
    if not buffer_type.supports(tensor):
        raise Unsupported(f"{buffer_type.name}: this memory does not take {tensor}")
