"""Decoding of stored bytes to float32 in NumPy: block types, f16, bf16, f32 and f64.

`decode` returns a new array, for tests and authors of backends; `decode_rows` writes into an
existing array.
"""

import numpy as np

from tensorplug.blocks.rows import can_decode, decode_rows
from tensorplug.device.buffer import as_bytes
from tensorplug.dtypes import DTypeLike
from tensorplug.dtypes import dtype as dtype_of
from tensorplug.errors import ShapeError, Unsupported
from tensorplug.graph.tensor import Array

__all__ = ["can_decode", "decode", "decode_rows"]


def decode(data: "memoryview | bytes | Array", dtype: DTypeLike, shape: tuple[int, ...]) -> Array:
    """Return the values of stored bytes as a new float32 array of `shape`.

    `data` holds the rows of a contiguous tensor one after another. `shape` is in NumPy order; its
    last size is the length of a row, for block types a multiple of the block length. `dtype` is a
    float or block type; f64 is rounded to float32. The values equal ggml's, bit for bit. Raises
    Unsupported for integer types, and for types whose tables need the package `gguf` if it is
    missing; ShapeError if the size of `data` does not match `shape`.
    """
    kind = dtype_of(dtype)
    if not (kind.is_block or kind.is_float):
        raise Unsupported(f"blocks.decode: {kind.name} is an integer type; view the bytes in NumPy")
    row = kind.row_size(shape[-1] if shape else 1)
    count = int(np.prod(shape[:-1], dtype=np.int64))
    stored = np.frombuffer(as_bytes(data), np.uint8)
    if stored.size != count * row:
        raise ShapeError(
            f"blocks.decode: {stored.size} bytes are not {kind.name} of shape {shape}, "
            f"which takes {count * row}"
        )
    out = np.empty((count, shape[-1] if shape else 1), np.float32)
    if out.size:
        decode_rows(kind, stored.reshape(count, row), out)
    return out.reshape(shape)
