"""Rows taken from and written to a table of rows."""

from tensorplug.dtypes import F16, F32, I32, DType
from tensorplug.graph.tensor import Tensor, ne_of
from tensorplug.ops.copy import cont
from tensorplug.ops.rules import (
    ANY,
    IDS,
    ONLY_F32,
    ROW_IDS,
    always,
    check_written,
    divides,
    overlap,
    same_type_as,
)
from tensorplug.ops.split import PARTIAL, Way, ways
from tensorplug.ops.table import Alias, Call, Op, Param, Shape, Source, apply, register_op


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
        sources=(Source("table", ANY), Source("ids", IDS, rows_of=("table", 1))),
        shape=_gathered,
        dtype=_decoded,
        split=ways(
            Way({"table": PARTIAL}, PARTIAL),
            Way({"table": 0}, 0),
            Way({"ids": 0}, 1),
            Way({"table": 2, "ids": 1}, 2),
            Way({"table": 3, "ids": 2}, 3),
        ),
        formula="y[:, i] = table[:, ids[i]], decoded to f32; zeros for the id -1",
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


def _rows_apart(call: Call) -> None:
    if overlap(call["rows"], call["table"], equal=True):
        raise call.fail("rows and table overlap; cont() the rows first, as set_rows() does")


def _over_table(call: Call) -> Alias:
    return Alias(call["table"], 0, call["table"].nb)


SET_ROWS = register_op(
    Op(
        "set_rows",
        sources=(
            Source("table", ANY),
            Source("rows", ONLY_F32),
            Source("ids", ROW_IDS, rows_of=("table", 1)),
        ),
        shape=_scattered,
        dtype=same_type_as("table"),
        alias=_over_table,
        check=(_rows_apart, check_written("table")),
        writes=True,
        split=ways(Way({"table": 0, "rows": 0}, 0)),
        formula="table[:, ids[i]] = rows[:, i], encoded to the type of table; nothing for the "
        "id -1; y is table",
    )
)


def _rows_of(call: Call) -> Shape:
    grad, ids, ne = call["grad"], call["ids"], call.params["ne"]
    assert isinstance(ne, tuple)
    a, b, c, d = (n if isinstance(n, int) else 0 for n in ne)
    if (c, d) != (1, 1) or grad.ne[0] != a or grad.ne[2:] != (1, 1):
        raise call.fail(f"grad and the table, {ne}, must be matrices with rows of one length")
    if ids.ne != (grad.ne[1], 1, 1, 1):
        raise call.fail("ids must be a vector with one entry for each row of grad")
    return (a, b, 1, 1), 2


GET_ROWS_BACK = register_op(
    Op(
        "get_rows_back",
        sources=(Source("grad", frozenset({F32, F16})), Source("ids", IDS, rows_of=("", 1))),
        params=(Param("ne", tuple, required=True),),
        shape=_rows_of,
        dtype=always(F32),
        split=ways(Way({"grad": 0}, 0), Way({"grad": PARTIAL}, PARTIAL)),
        formula="y[:, r] = sum of grad[:, i] over all i with ids[i] = r, for a table of sizes ne",
    )
)


def get_rows(table: Tensor, ids: Tensor, *, name: str = "") -> Tensor:
    """The rows of `table` [n, rows, a, b] that i32 `ids` [m, a, b] number: f32 [n, m, a, b].

    A table of i32 gives i32. The id -1 gives a row of zeros. Any other id outside the table is an
    error; `tensorplug.ops.ids` says when it is raised. Sizes are in `ne` order.

    >>> table = tp.input("table", (1000, 64), tp.Q8_0)
    >>> ids = tp.input("ids", (5,), tp.I32)
    >>> tp.get_rows(table, ids).shape
    (5, 64)
    """
    return apply(GET_ROWS, table, ids, name=name)


def set_rows(table: Tensor, rows: Tensor, ids: Tensor, *, name: str = "") -> Tensor:
    """Write f32 `rows` [n, m, a, b] into `table` [n, r, a, b] at i32 or i64 `ids`; an effect.

    Rows are encoded to the type of `table`. The result is `table` after the write. If two ids are
    equal, one of their rows is stored. The id -1 writes nothing. Any other id outside the table is
    an error; `tensorplug.ops.ids` says when it is raised. Nothing outside the table is ever
    written. Sizes are in `ne` order.

    >>> with tp.open("cpu") as cpu:
    ...     table = cpu.place("table", np.zeros((10, 4), np.float32))
    ...     rows, ids = tp.input("rows", (2, 4), tp.F32), tp.input("ids", (2,), tp.I64)
    ...     kept = tp.set_rows(table, rows, ids)
    >>> kept.shape
    (10, 4)
    """
    apart = cont(rows) if overlap(rows, table, equal=True) else rows
    return apply(SET_ROWS, table, apart, ids, name=name)


def get_rows_back(grad: Tensor, ids: Tensor, shape: tuple[int, int], *, name: str = "") -> Tensor:
    """Gradient of `get_rows` with respect to a table of `shape` (rows, row length): f32.

    `grad` is f32 or f16 [n, m], `ids` i32 [m], in `ne` order. The id -1 adds nothing. Any other id
    outside the table is an error; `tensorplug.ops.ids` says when it is raised.

    >>> grad = tp.input("grad", (5, 64), tp.F32)
    >>> ids = tp.input("ids", (5,), tp.I32)
    >>> tp.get_rows_back(grad, ids, (1000, 64)).shape
    (1000, 64)
    """
    ne, _ = ne_of(shape, "get_rows_back")
    return apply(GET_ROWS_BACK, grad, ids, ne=ne, name=name)
