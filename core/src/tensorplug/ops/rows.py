"""Rows taken from and written to a table of rows."""

from tensorplug.dtypes import F32, I32, DType
from tensorplug.ops.rules import ANY, IDS, ONLY_F32, ROW_IDS, divides, same_type_as
from tensorplug.ops.split import Way, ways
from tensorplug.ops.table import Alias, Call, Op, Shape, Source, apply, register_op
from tensorplug.tensor import Tensor


def _gathered(call: Call) -> Shape:
    table, ids = call["table"], call["ids"]
    if table.ne[2] != ids.ne[1] or table.ne[3] != ids.ne[2] or ids.ne[3] != 1:
        raise call.fail("ids must have ne[2] and ne[3] of table as its dimensions 1 and 2")
    return (table.ne[0], ids.ne[0], ids.ne[1], ids.ne[2]), max(table.rank, ids.rank + 1)


def _decoded(call: Call) -> DType:
    return I32 if call["table"].dtype is I32 else F32


GET_ROWS = register_op(
    Op(
        "get_rows",
        sources=(Source("table", ANY), Source("ids", IDS)),
        shape=_gathered,
        dtype=_decoded,
        split=ways(
            Way({"table": 0}, 0),
            Way({"ids": 0}, 1),
            Way({"table": 2, "ids": 1}, 2),
            Way({"table": 3, "ids": 2}, 3),
        ),
        formula="y[:, i] = table[:, ids[i]], decoded to f32",
    )
)


def _scattered(call: Call) -> Shape:
    table, rows, ids = call["table"], call["rows"], call["ids"]
    if table.ne[0] != rows.ne[0] or table.ne[2:] != rows.ne[2:]:
        raise call.fail("rows must have the row length and dimensions 2 and 3 of table")
    if ids.ne[0] != rows.ne[1] or ids.ne[3] != 1:
        raise call.fail("ids must have one entry for each row")
    if not (divides(ids.ne[1], rows.ne[2]) and divides(ids.ne[2], rows.ne[3])):
        raise call.fail("ids do not repeat over dimensions 2 and 3 of rows")
    return table.ne, table.rank


def _over_table(call: Call) -> Alias:
    return Alias(call["table"], 0, call["table"].nb)


SET_ROWS = register_op(
    Op(
        "set_rows",
        sources=(Source("table", ANY), Source("rows", ONLY_F32), Source("ids", ROW_IDS)),
        shape=_scattered,
        dtype=same_type_as("table"),
        alias=_over_table,
        writes=True,
        split=ways(Way({"table": 0, "rows": 0}, 0)),
        formula="table[:, ids[i]] = rows[:, i], encoded to the type of table; y is table",
    )
)


def get_rows(table: Tensor, ids: Tensor, *, name: str = "") -> Tensor:
    """Rows of `table` [n, rows, a, b] that i32 `ids` [m, a, b] name: f32 [n, m, a, b].

    A table of i32 stays i32. An id outside the table raises GraphError when the graph runs.
    """
    return apply(GET_ROWS, table, ids, name=name)


def set_rows(table: Tensor, rows: Tensor, ids: Tensor, *, name: str = "") -> Tensor:
    """Write f32 `rows` [n, m, a, b] into `table` [n, r, a, b] at i32 or i64 `ids`; an effect.

    Rows are encoded to the type of `table`. The result is `table` after the write. Two equal ids
    leave one of the rows. An id outside the table raises GraphError when the graph runs.
    """
    return apply(SET_ROWS, table, rows, ids, name=name)
