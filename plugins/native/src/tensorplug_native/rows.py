"""f32 rows to stored rows, by compiled encoders that give the bytes of those in NumPy."""

import numpy as np

from tensorplug.device import Array
from tensorplug.dtypes import DType
from tensorplug.errors import ShapeError
from tensorplug_cpu.encode import encode_rows as encode_rows_in_numpy
from tensorplug_native.library import Level, library
from tensorplug_native.program import address
from tensorplug_native.rules import BLOCKS, WRITABLE

COMPILED = BLOCKS & WRITABLE
"""Block types with compiled encoders."""


def encode_rows(
    level: Level, dtype: DType, values: Array, out: Array, importance: Array | None = None
) -> None:
    """As that of tensorplug_cpu.encode; it serves other types, values with importance, and gaps."""
    if dtype not in COMPILED or importance is not None or not out.flags.c_contiguous:
        encode_rows_in_numpy(dtype, values, out, importance)
        return
    rows, elements = values.shape
    if out.shape != (rows, dtype.row_size(elements)):
        raise ShapeError(
            f"cpu: {rows} rows of {elements} values take {rows} x {dtype.row_size(elements)} bytes "
            f"of {dtype.name}, and there are {' x '.join(map(str, out.shape))}"
        )
    dense = np.ascontiguousarray(values, np.float32)
    if dense.size:
        library().encode(level.index, dtype.id, address(dense), dense.size, address(out))
