"""Products of matrices on processors: items stream rows of weights."""

from dataclasses import replace

from tensorplug import dtypes
from tensorplug.dtypes import DType
from tensorplug_opencl.kernels.operands import Operands, packed, quantised
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.product import REPEATS, ROWS_OF
from tensorplug_simt.program import Kernel, Launch, Program, blocks_of, launch
from tensorplug_simt.source import BYTES

LANES = "tensorplug_opencl:kernels/lanes.cl"
FLOATS = (ROWS_OF, BYTES, LANES, "tensorplug_opencl:kernels/floats.cl")
"""What decodes weights of any type to floats."""
CODES = (ROWS_OF, LANES, "tensorplug_opencl:kernels/codes.cl")
"""What leaves weights of 4 to 6 bits as codes."""

_BUFFERS = ("w", "x", "ids", "y")
_ROWS = (*REPEATS, ("rows", "int"))
MATVEC = Kernel("matvec", "tensorplug_opencl:kernels/matvec.cl", _BUFFERS, ("y",), _ROWS, FLOATS)
STREAM = Kernel("stream", "tensorplug_opencl:kernels/stream.cl", _BUFFERS, ("y",), _ROWS, CODES)
MATMUL = Kernel(
    "matmul",
    "tensorplug_opencl:kernels/matmul.cl",
    ("w", "x", "lists", "y"),
    ("y",),
    (*_ROWS, ("panels", "int")),
    (*FLOATS, "tensorplug_opencl:kernels/panels_f32.cl"),
)
MATMUL_INT8 = replace(MATMUL, parts=(*CODES, "tensorplug_opencl:kernels/panels_int8.cl"))

STREAMED: frozenset[DType] = frozenset(
    getattr(dtypes, name) for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
)
"""Types whose codes meet `x` before their scales: one row of floats, or rows of bytes."""
COLUMNS = (1, 2, 4, 8)
"""How many rows of `x` a matvec may take at once."""
SHARES = 4
"""Parts of the work for each unit: the driver hands what is left to the units that are free."""
PANEL = 32
"""Rows of `w` that are decoded together."""
STEP = 32
"""Rows of `x` in the smallest part of a product: decoding a panel is worth that many."""


def streams(these: Operands) -> bool:
    """Whether one row of `x` meets codes before scales."""
    return "lists" not in these.experts and these.rows == 1 and these.w.dtype in STREAMED


def many(these: Operands) -> bool:
    """Whether rows of `x` meet panels of `w` that are decoded once for all of them."""
    return "lists" in these.experts or these.rows > COLUMNS[-1]


def takes_bytes(these: Operands) -> bool:
    """Whether rows of `x` may be rounded to bytes."""
    return these.w.dtype in STREAMED and (these.rows == 1 or many(these))


def product(these: Operands, facts: Facts, *, int8: bool = False) -> Program:
    """A matvec for few rows of `x`, a blocked product for many; `int8` if `takes_bytes` holds."""
    if not many(these):
        ready = packed(these, facts)
        return ready.program(matvec(ready, facts, int8=int8))
    ready = quantised(these, facts) if int8 else packed(these, facts)
    return ready.program(matmul(ready, facts, int8=int8))


def matvec(these: Operands, facts: Facts, *, int8: bool) -> Launch:
    """Each item reads neighbouring rows of `w`: one stream for each unit."""
    n = these.w.ne[1]
    rows = blocks_of(n, max(SHARES * facts.units // these.matrices, 1))
    stream = streams(these)
    columns = {"COLS": next(c for c in COLUMNS if c >= these.rows)}
    kind = ({"INT8": 1} if int8 else {}) if stream else columns
    return launch(
        STREAM if stream else MATVEC,
        these.regions,
        groups=(blocks_of(n, rows), 1, these.matrices),
        defines={**kind, **these.defines},
        numbers=these.repeats,
        rows=rows,
    )


def matmul(these: Operands, facts: Facts, *, int8: bool) -> Launch:
    """Each item decodes panels of `w` and multiplies them with the rows of `x`, or a share."""
    panels = blocks_of(these.w.ne[1], PANEL)
    each = blocks_of(panels, max(SHARES * facts.units // these.matrices, 1))
    items = blocks_of(panels, each) * these.matrices
    parts = min(blocks_of(2 * facts.units, items), blocks_of(these.rows, STEP))
    rows = blocks_of(blocks_of(these.rows, parts), STEP) * STEP
    return launch(
        MATMUL_INT8 if int8 else MATMUL,
        these.regions,
        groups=(blocks_of(panels, each), blocks_of(these.rows, rows), these.matrices),
        defines=these.defines,
        numbers=these.repeats,
        rows=rows,
        panels=each,
    )
