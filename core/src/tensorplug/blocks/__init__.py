"""Values of stored data in NumPy: what the bytes of block types, f16 and bf16 mean.

`decode` is for authors of backends and for tests; `decode_rows` writes into an array that is there.
"""

import numpy as np

from tensorplug.blocks.rows import can_decode, decode_rows
from tensorplug.device.buffer import as_bytes
from tensorplug.dtypes import DType
from tensorplug.dtypes import dtype as dtype_of
from tensorplug.errors import ShapeError, Unsupported
from tensorplug.graph.tensor import Array

__all__ = ["can_decode", "decode", "decode_rows"]


def decode(data: "memoryview | bytes | Array", dtype: DType | str, shape: tuple[int, ...]) -> Array:
    """Return the values of stored bytes as a new float32 array of `shape`.

    `data` holds the rows of a contiguous tensor one after another: `shape` is in NumPy order, and
    its last size is the length of a row, whole blocks of a block type. Any float or block type; f64
    is rounded. The values are those of ggml, bit by bit. Raises Unsupported for integers, and where
    the package `gguf` is missing, whose tables some types need; ShapeError for other sizes.
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
