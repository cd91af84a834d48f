"""Many elements to one, along rows or over all; running sums and orders of rows."""

from tensorplug.dtypes import F32, I32, I64
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rules import (
    IDS,
    ONLY_F32,
    REAL,
    always,
    one_per_row,
    same_shape_as,
    same_shapes,
    same_type_as,
    scalar,
)
from tensorplug.ops.split import AXES, PARTIAL, Way, aligned, any_of, linear, ways
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op

_ROWS = aligned("x", axes=AXES[1:])
"""Rows have nothing to do with each other."""

SUM = register_op(
    Op(
        "sum",
        sources=(Source("x", REAL),),
        shape=scalar,
        dtype=same_type_as("x"),
        split=any_of(linear("x"), ways(*(Way({"x": axis}, PARTIAL) for axis in AXES))),
        formula="y = sum of all elements",
    )
)
SUM_ROWS = register_op(
    Op(
        "sum_rows",
        sources=(Source("x", ONLY_F32),),
        shape=one_per_row("x"),
        dtype=always(F32),
        split=any_of(_ROWS, linear("x"), ways(Way({"x": 0}, PARTIAL))),
        formula="y[0, j] = sum over i of x[i, j]",
    )
)
MEAN = register_op(
    Op(
        "mean",
        sources=(Source("x", ONLY_F32),),
        shape=one_per_row("x"),
        dtype=always(F32),
        split=any_of(_ROWS, linear("x")),
        formula="y[0, j] = mean over i of x[i, j]",
    )
)
CUMSUM = register_op(
    Op(
        "cumsum",
        sources=(Source("x", ONLY_F32),),
        shape=same_shape_as("x"),
        dtype=always(F32),
        split=any_of(_ROWS, linear("x")),
        formula="y[i, j] = sum over k <= i of x[k, j]",
    )
)


def _row_count(call: Call) -> Shape:
    x = call["x"]
    if max(x.ne[2], x.ne[3]) > 1:
        raise call.fail("x must be a matrix")
    return (x.ne[1], 1, 1, 1), 1


ARGMAX = register_op(
    Op(
        "argmax",
        sources=(Source("x", ONLY_F32),),
        shape=_row_count,
        dtype=always(I32),
        split=ways(Way({"x": 1}, 0)),
        formula="y[j] = index of the first largest x[i, j] over i",
    )
)
ARGSORT = register_op(
    Op(
        "argsort",
        sources=(Source("x", ONLY_F32),),
        params=(Param("descending", bool, default=False),),
        shape=same_shape_as("x"),
        dtype=always(I32),
        split=_ROWS,
        formula="y[:, j] = indices that sort x[:, j]",
    )
)


def _first_k(call: Call) -> Shape:
    x, k = call["x"], call.int("k")
    if not 1 <= k <= x.ne[0]:
        raise call.fail(f"k = {k} is not between 1 and the row length {x.ne[0]}")
    return (k, x.ne[1], x.ne[2], x.ne[3]), x.rank


TOP_K = register_op(
    Op(
        "top_k",
        sources=(Source("x", ONLY_F32),),
        params=(Param("k", int, required=True),),
        shape=_first_k,
        dtype=always(I32),
        split=_ROWS,
        formula="y[:, j] = indices of the k largest of x[:, j], in any order",
    )
)


COUNT_EQUAL = register_op(
    Op(
        "count_equal",
        sources=(Source("a", IDS), Source("b", IDS)),
        shape=scalar,
        dtype=always(I64),
        check=(same_shapes("a", "b"),),
        split=ways(*(Way({"a": axis, "b": axis}, PARTIAL) for axis in AXES)),
        formula="y = number of places at which a and b are equal",
    )
)


def sum(x: Tensor, *, name: str = "") -> Tensor:
    """Sum of all elements, one element in one dimension."""
    return apply(SUM, x, name=name)


def sum_rows(x: Tensor, *, name: str = "") -> Tensor:
    """Sum of each row: [n, m, ...] to [1, m, ...]; f32."""
    return apply(SUM_ROWS, x, name=name)


def mean(x: Tensor, *, name: str = "") -> Tensor:
    """Mean of each row: [n, m, ...] to [1, m, ...]; f32."""
    return apply(MEAN, x, name=name)


def cumsum(x: Tensor, *, name: str = "") -> Tensor:
    """Running sum along each row; f32."""
    return apply(CUMSUM, x, name=name)


def argmax(x: Tensor, *, name: str = "") -> Tensor:
    """Index of the largest element of each row of a matrix [n, m]: i32 [m]."""
    return apply(ARGMAX, x, name=name)


def argsort(x: Tensor, *, descending: bool = False, name: str = "") -> Tensor:
    """i32 indices that sort each row; equal elements in any order."""
    return apply(ARGSORT, x, descending=descending, name=name)


def top_k(x: Tensor, k: int, *, name: str = "") -> Tensor:
    """i32 indices of the `k` largest elements of each row, in any order."""
    return apply(TOP_K, x, k=k, name=name)


def count_equal(a: Tensor, b: Tensor, *, name: str = "") -> Tensor:
    """Count the places at which i32 `a` and `b`, of one shape, are equal: i64, one element."""
    return apply(COUNT_EQUAL, a, b, name=name)
