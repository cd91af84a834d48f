"""Kinds of host memory: our own, memory of others, and weights expanded to f32."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tensorplug.blocks.rows import can_decode, decode_rows, rows_per_chunk
from tensorplug.device import (
    Array,
    Buffer,
    BufferType,
    BufferUsage,
    HostBuffer,
    Layout,
    Tensor,
    Unsupported,
)
from tensorplug.dtypes import BF16, F16, F32, DType
from tensorplug_cpu.operand import Operand, OwnLayoutBuffer
from tensorplug_cpu.threads import Workers, split

if TYPE_CHECKING:
    from tensorplug.device import Device

ALIGNMENT = 64
"""A cache line, and the widest vector registers."""
LARGEST = sys.maxsize - ALIGNMENT
"""Bytes that an array can have, less what moves its start."""


def aligned(size: int) -> Array:
    """Return `size` bytes of uninitialised memory that start at a multiple of ALIGNMENT."""
    return _aligned(np.empty(size + ALIGNMENT, np.uint8), size)


def _aligned(memory: Array, size: int) -> Array:
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]


class CPUBufferType(BufferType):
    """Memory of this process."""

    name = "cpu"
    alignment = ALIGNMENT
    max_size = LARGEST
    is_host = True
    fresh_is_zero = True
    """The system hands out zeros; pages that stay unwritten take no memory."""

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        return HostBuffer(self, _aligned(np.zeros(size + ALIGNMENT, np.uint8), size), usage)


class MappedBufferType(BufferType):
    """Memory that others allocated, such as a mapped file; it is used in place."""

    name = "cpu_mapped"
    alignment = 8
    """The alignment that every file format keeps; kernels accept any."""
    is_host = True

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        raise Unsupported(
            f"{self.name}: cannot allocate {size} bytes, it only wraps memory that exists; use "
            "import_host(), or allocate 'cpu' memory"
        )


class ExpandedBufferType(BufferType):
    """Weights decoded to f32 when they are written: more memory, less work in each run.

    Holds leafs of float and block types. A tensor of `n` elements takes 4 * `n` bytes.
    """

    name = "cpu_f32"
    layout = Layout.EXPANDED
    alignment = ALIGNMENT
    max_size = LARGEST

    def __init__(self, device: "Device", workers: Workers) -> None:
        super().__init__(device)
        self.workers = workers

    def _alloc_size(self, tensor: Tensor) -> int:
        return tensor.size * 4

    def supports(self, tensor: Tensor) -> bool:
        return tensor.is_leaf and tensor.is_contiguous and can_expand(tensor.dtype)

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        return ExpandedBuffer(self, aligned(size), usage)


def can_expand(dtype: DType) -> bool:
    """Whether f32 holds every value of `dtype`, and we know how to read it."""
    return dtype in (F32, F16, BF16) or (dtype.is_block and can_decode(dtype))


class ExpandedBuffer(OwnLayoutBuffer):
    """f32 memory behind tensors of other types. Offsets count bytes of the expanded layout."""

    type: ExpandedBufferType

    def host(self) -> Array:
        raise Unsupported(
            f"{self!r}: holds tensors expanded to f32, not in their own layout; read() copies what "
            "can be given back"
        )

    def operand(self, tensor: Tensor, offset: int) -> Operand:
        return Operand(self.expanded(tensor, offset), F32)

    def expanded(self, tensor: Tensor, offset: int) -> Array:
        """View `tensor`, whose root starts at `offset`, as f32 of four dimensions, NumPy order."""
        self.check_open()
        block, size = tensor.dtype.block, tensor.dtype.size
        start = offset // 4 + tensor.view_offset // size * block
        floats = self._memory[: self.size // 4 * 4].view(np.float32)
        strides = [step // size * block * 4 for step in tensor.nb[::-1]]
        strides[3] = 4 if tensor.dtype.is_block else strides[3]
        return as_strided(floats[start : start + 1], tensor.ne[::-1], strides)

    def write_tensor(self, tensor: Tensor, offset: int, data: memoryview) -> None:
        if not self.type.supports(tensor):
            raise Unsupported(
                f"{self!r}: cannot hold {tensor}; it takes contiguous weights of float and block "
                "types that can be decoded; use 'cpu' memory"
            )
        self._check(offset, self.type.alloc_size(tensor), "write")
        if not tensor.size:
            return
        raw = np.frombuffer(data, np.uint8).reshape(tensor.rows, -1)
        out = self.expanded(tensor, offset).reshape(tensor.rows, tensor.ne[0])
        self.type.workers.run(
            [
                _Decode(tensor.dtype, raw[start:stop], out[start:stop])
                for start, stop in split(tensor.rows, self.type.workers.count)
            ]
        )

    def read_tensor(self, tensor: Tensor, offset: int, out: memoryview) -> None:
        if tensor.dtype.is_block:
            raise Unsupported(
                f"{self!r}: {tensor} is stored expanded to f32 and its {tensor.dtype.name} blocks "
                "are gone; read them where they came from, or place the tensor in 'cpu' memory"
            )
        root = offset - tensor.view_offset
        values = self.expanded(tensor, root)
        span = np.frombuffer(out, np.uint8)
        target = as_strided(span.view(tensor.dtype.storage), tensor.ne[::-1], tensor.nb[::-1])
        _NARROW[tensor.dtype](values, target)


class _Decode:
    """Some rows on their way to f32, a cache-sized chunk at a time."""

    def __init__(self, dtype: DType, raw: Array, out: Array) -> None:
        self._dtype, self._raw, self._out = dtype, raw, out

    def __call__(self) -> None:
        chunk = rows_per_chunk(self._out.shape[1])
        for start in range(0, len(self._out), chunk):
            rows = slice(start, start + chunk)
            decode_rows(self._dtype, self._raw[rows], self._out[rows])


def _narrow(values: Array, target: Array) -> None:
    np.copyto(target, values, casting="same_kind")


def _upper_halves(values: Array, target: Array) -> None:
    np.copyto(target, values.view(np.uint32) >> 16, casting="unsafe")


_NARROW: dict[DType, Callable[[Array, Array], None]] = {
    F32: _narrow,
    F16: _narrow,
    BF16: _upper_halves,
}
"""All exact: the values came from the type they go back to."""
