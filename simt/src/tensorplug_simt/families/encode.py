"""Numbers as blocks: an item for each block."""

from math import prod

from tensorplug.device import Tensor
from tensorplug.dtypes import IQ4_NL, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, DType
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.copying import reshaped
from tensorplug_simt.grids import per_element
from tensorplug_simt.lowering import NoKernel
from tensorplug_simt.program import Kernel, Launch, Region

TEXT = "tensorplug_simt:kernels/encode.k"

_NUMBERS = (("count", "uint"),)
COPIED = Kernel("blocks_copied", TEXT, ("x", "y"), ("y",), _NUMBERS, rounds_each_step=True)
PUT = Kernel("blocks_put", TEXT, ("x", "ids", "y"), ("y",), _NUMBERS, rounds_each_step=True)

ENCODERS: frozenset[DType] = frozenset({Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL})
"""Block types that the text can write: those of caches of keys and values, and q4_1 and q5_0, whose
code is that of q4_0 and q5_1. Other types are encoded on the processor."""


def need_encoder(dtype: DType) -> None:
    """Raise NoKernel unless values can be written as blocks of `dtype`."""
    if dtype not in ENCODERS:
        raise NoKernel(f"no encoder for {dtype.name}")


def encoded(x: Region, y: Region, facts: Facts) -> Launch:
    """Elements of `x` in order as the blocks of `y`."""
    defines: dict[str, int | str] = {}
    if x.ne != y.ne:
        same = reshaped(x, y.ne)
        x, y = (same, y) if same is not None else (x, reshaped(y, x.ne) or y)
        if x.ne != y.ne:
            defines["RESHAPED"] = 1
    count = prod(y.ne) // y.dtype.block
    return per_element(COPIED, {"x": x, "y": y}, count, facts, defines=defines)


def rows_encoded(rows: Tensor, ids: Tensor, table: Tensor, facts: Facts) -> Launch:
    """Rows written as blocks where ids say."""
    count = rows.size // table.dtype.block
    return per_element(PUT, {"x": rows, "ids": ids, "y": table}, count, facts)
