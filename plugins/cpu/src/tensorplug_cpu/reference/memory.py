"""`Memory`: what every tensor of a run holds, with views as windows on it."""

import numpy as np

from tensorplug.device import Array, GraphError, Tensor, Unsupported
from tensorplug.dtypes import BF16, F16, F32, F64, DType
from tensorplug_cpu.reference.blocks import decode_rows, encode_rows


def slot_type(dtype: DType) -> "np.dtype[np.generic]":
    """The NumPy type of one slot: what is stored, but float64 for f32; a byte for block types."""
    return np.dtype(np.float64) if dtype is F32 else dtype.storage


def decode(dtype: DType, slots: Array) -> Array:
    """Return the values of slots, or of stored data: float64, or int64 for integers."""
    if dtype.is_block:
        return decode_rows(dtype, slots)
    if dtype is BF16:
        # A bf16 is the upper half of an f32.
        return (slots.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return slots.astype(np.int64 if dtype.is_integer else np.float64)


def encode(dtype: DType, values: Array) -> Array:
    """Return the slots that hold `values`; narrow types are rounded from f32, as devices do."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _encoded(dtype, values)


def _encoded(dtype: DType, values: Array) -> Array:
    if dtype is F32:
        rounded = values.astype(np.float32)
        return np.where(np.isinf(rounded), rounded, values.astype(np.float64))
    if dtype is F64:
        return values.astype(np.float64)
    if dtype is F16:
        return values.astype(np.float32).astype(np.float16)
    if dtype is BF16:
        return _upper_halves(values.astype(np.float32))
    if dtype.is_block:
        return encode_rows(dtype, values.astype(np.float32))
    whole = np.trunc(values) if values.dtype.kind == "f" else values
    return whole.astype(dtype.storage)


def _upper_halves(values: Array) -> Array:
    """bf16 of float32: the nearest, halves to even. Adding would carry a NaN away to zero."""
    bits = values.view(np.uint32)
    even = bits + (((bits >> 16) & 1) + 0x7FFF).astype(np.uint32)
    return np.where(np.isnan(values), bits >> 16, even >> 16).astype(np.uint16)


class Memory:
    """The memory of a run, root by root. Arrays have four axes, slowest first: `ne` reversed."""

    def __init__(self) -> None:
        self._slots: dict[Tensor, Array] = {}

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.root in self._slots

    def add(self, root: Tensor) -> None:
        """Give `root` memory of its own, all zero."""
        unit = slot_type(root.dtype)
        self._slots[root] = np.zeros(root.nbytes // _stored_size(root.dtype), unit)

    def window(self, tensor: Tensor) -> Array:
        """The slots of `tensor`, to be read or written; bytes of rows for block types."""
        root = self._slots.get(tensor.root)
        if root is None:
            raise GraphError(f"reference: {tensor} has no memory; its root is outside the graph")
        if tensor.splits_blocks:
            raise Unsupported(f"reference: {tensor} is transposed; its blocks cannot be split")
        stored = _stored_size(tensor.dtype)
        row = tensor.ne[0] if not tensor.dtype.is_block else tensor.dtype.row_size(tensor.ne[0])
        first = stored if tensor.dtype.is_block else tensor.nb[0]
        shape = (*tensor.ne[:0:-1], row)
        steps = (*tensor.nb[:0:-1], first)
        unit = root.itemsize
        strides = tuple(b // stored * unit for b in steps)
        offset = tensor.view_offset // stored * unit
        return np.ndarray(shape, root.dtype, root, offset if tensor.size else 0, strides)

    def value(self, tensor: Tensor) -> Array:
        """A copy of the values of `tensor`."""
        return decode(tensor.dtype, self.window(tensor))

    def store(self, tensor: Tensor, values: Array) -> None:
        """Write `values`, converted to the type of `tensor`."""
        self.window(tensor)[...] = encode(tensor.dtype, values)


def _stored_size(dtype: DType) -> int:
    """Bytes that one slot takes in the memory of a device."""
    return 1 if dtype.is_block else dtype.size
