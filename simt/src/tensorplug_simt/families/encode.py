"""Numbers as blocks: an item for each block."""

from tensorplug.dtypes import DType
from tensorplug.tensor import Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element
from tensorplug_simt.lowering import NoKernel
from tensorplug_simt.program import Kernel, Launch

TEXT = "tensorplug_simt:kernels/encode.k"

COPIED = Kernel("blocks_copied", TEXT, ("x", "y"), ("y",), (("count", "uint"),))
PUT = Kernel("blocks_put", TEXT, ("x", "ids", "y"), ("y",), (("count", "uint"),))

ENCODERS: frozenset[DType] = frozenset()
"""Block types that follow from their values without a search."""


def need_encoder(dtype: DType) -> None:
    """Raise NoKernel unless values can be written as blocks of `dtype`."""
    if dtype not in ENCODERS:
        raise NoKernel(f"no encoder for {dtype.name}")


def rows_encoded(rows: Tensor, ids: Tensor, table: Tensor, facts: Facts) -> Launch:
    """Rows written as blocks where ids say."""
    count = rows.size // table.dtype.block
    return per_element(PUT, {"x": rows, "ids": ids, "y": table}, count, facts)
