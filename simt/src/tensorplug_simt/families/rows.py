"""Rows taken from and written to a table of rows."""

from tensorplug.device import Tensor
from tensorplug.dtypes import FLOATS, I32, INTEGERS, DType
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.encode import need_encoder, rows_encoded
from tensorplug_simt.grids import per_element, per_row, regions_of
from tensorplug_simt.lowering import lowers, need_type
from tensorplug_simt.program import Kernel, Program, blocks_of

TEXT = "tensorplug_simt:kernels/rows.k"

TAKEN = Kernel("rows_taken", TEXT, ("table", "ids", "y"), ("y",), (("parts", "int"),))
PUT = Kernel("rows_put", TEXT, ("rows", "ids", "table"), ("table",))
CLEARED = Kernel("rows_cleared", TEXT, ("y",), ("y",), (("count", "uint"),))
ADDED = Kernel("rows_added", TEXT, ("grad", "ids", "y"), ("y",), (("count", "uint"),))

PART = 1024
"""Elements of a row that one group takes: long rows keep several busy."""

NUMBERS: frozenset[DType] = INTEGERS | FLOATS


@lowers("get_rows")
def get_rows(node: Tensor, facts: Facts) -> Program:
    """y[:, i] = table[:, ids[i]], decoded."""
    table = node.sources[0]
    if not table.dtype.is_block:
        need_type(table, NUMBERS)
    parts = blocks_of(node.ne[0], PART)
    defines: dict[str, int | str] = {"PART": PART}
    if table.has_contiguous_rows:
        defines["FLAT"] = 1
    grid = (node.ne[1] * parts, node.ne[2], node.ne[3])
    regions = regions_of(TAKEN, node)
    return Program((per_row(TAKEN, regions, grid, facts, defines=defines, parts=parts),))


@lowers("set_rows")
def set_rows(node: Tensor, facts: Facts) -> Program:
    """table[:, ids[i]] = rows[:, i], encoded."""
    _, rows, ids = node.sources
    if not rows.size:
        return Program(())
    if node.dtype.is_block:
        need_encoder(node.dtype)
        return Program((rows_encoded(rows, ids, node, facts),))
    need_type(node, NUMBERS)
    regions = {"rows": rows, "ids": ids, "table": node}
    flat = rows.has_contiguous_rows and node.has_contiguous_rows
    grid = (rows.ne[1], rows.ne[2], rows.ne[3])
    defines: dict[str, int | str] = {"FLAT": 1} if flat else {}
    return Program((per_row(PUT, regions, grid, facts, defines=defines),))


@lowers("get_rows_back")
def get_rows_back(node: Tensor, facts: Facts) -> Program:
    """y[:, r] = sum of grad[:, i] over the i with ids[i] = r."""
    grad, ids = node.sources
    need_type(grad, NUMBERS)
    need_type(ids, frozenset({I32}))
    cleared = per_element(CLEARED, {"y": node}, node.size, facts)
    if not ids.size:
        return Program((cleared,))
    return Program((cleared, per_element(ADDED, regions_of(ADDED, node), node.ne[0], facts)))
