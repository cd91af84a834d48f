"""Reductions of rows or of all elements; running sums, and sorting of rows."""

import math
from collections.abc import Iterable, Sequence

from tensorplug.dtypes import F32, I32, I64
from tensorplug.graph.tensor import Tensor, Value
from tensorplug.ops import copy, view
from tensorplug.ops.axes import Axes, axes_of
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
"""Each row of the result depends only on the same row of x."""

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
        formula="y = number of elements that are equal in a and b",
    )
)


def sum(x: Tensor, axis: Axes | None = None, *, keepdims: bool = False, name: str = "") -> Tensor:
    """Sum over `axis`, or over all elements, as `numpy.sum`; the result has the type of `x`.

    `x` is f32; if all elements are summed, also f16 or bf16. `keepdims` keeps the axes in the
    shape, with size 1. Raises ShapeError, DTypeError.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.sum(x, axis=1, keepdims=True).shape
    (2, 1)
    """
    if axis is not None:
        return _over_axes(SUM_ROWS, "sum", x, axis, keepdims=keepdims, name=name)
    if not keepdims:
        return apply(SUM, x, name=name)
    return view.reshape(apply(SUM, x), (1,) * x.rank, name=name)


def sum_rows(x: Tensor, *, name: str = "") -> Tensor:
    """Sum of each row: `sum(x, axis=-1, keepdims=True)`; f32.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.sum_rows(x).shape
    (2, 1)
    """
    return apply(SUM_ROWS, x, name=name)


def mean(x: Tensor, axis: Axes | None = None, *, keepdims: bool = False, name: str = "") -> Tensor:
    """Mean over `axis`, or over all elements, as `numpy.mean`; f32. Raises ShapeError.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.mean(x, axis=0).shape
    (3,)
    """
    every = tuple(range(x.rank)) if axis is None else axis
    return _over_axes(MEAN, "mean", x, every, keepdims=keepdims, name=name)


def cumsum(x: Tensor, axis: int = -1, *, name: str = "") -> Tensor:
    """Running sum along `axis`; f32. Raises ShapeError.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.cumsum(x).shape
    (2, 3)
    """
    return _along(CUMSUM, x, axis, name=name)


def argmax(x: Tensor, axis: int | None = None, *, keepdims: bool = False, name: str = "") -> Tensor:
    """i32 index of the first largest element along `axis`, or in flattened `x`, as `numpy.argmax`.

    `x` is f32. Raises ShapeError.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.argmax(x, axis=1).shape
    (2,)
    """
    over = tuple(range(x.rank)) if axis is None else axes_of(x, axis, "argmax")
    if axis is not None and x.rank == 2 and over == (1,) and not keepdims:
        return apply(ARGMAX, x, name=name)
    rows = x if axis is None else _last(x, over)
    matrix = _shaped(rows, (1, x.size) if axis is None else (rows.rows, rows.ne[0]))
    return view.reshape(apply(ARGMAX, matrix), _reduced(x, over, keepdims=keepdims), name=name)


def argsort(x: Tensor, axis: int = -1, *, descending: bool = False, name: str = "") -> Tensor:
    """i32 indices that sort f32 `x` along `axis`; equal elements in any order.

    Raises ShapeError.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.argsort(x, descending=True).shape
    (2, 3)
    """
    return _along(ARGSORT, x, axis, descending=descending, name=name)


def _over_axes(op: Op, called: str, x: Tensor, axes: Axes, *, keepdims: bool, name: str) -> Tensor:
    """Apply an op that reduces each row to one element, over `axes` of `x`.

    `called` is the function that the caller named.
    """
    over = axes_of(x, axes, called)
    if over == (x.rank - 1,) and keepdims:
        return apply(op, x, name=name)
    rows = _last(x, over)
    length = math.prod(x.shape[axis] for axis in over)
    kept = [n for axis, n in enumerate(x.shape) if axis not in over]
    reduced = apply(op, rows if len(over) == 1 else _shaped(rows, (*kept, length)))
    return view.reshape(reduced, _reduced(x, over, keepdims=keepdims), name=name)


def _along(op: Op, x: Tensor, axis: int, *, name: str, **params: Value) -> Tensor:
    """Apply an op that works on rows and keeps their length, along `axis` of `x`."""
    (at,) = axes_of(x, axis, op.name)
    if at == x.rank - 1:
        return apply(op, x, name=name, **params)
    swap = list(range(x.rank))
    swap[at], swap[-1] = swap[-1], swap[at]
    rows = copy.cont(view.permute(x, swap))
    return copy.cont(view.permute(apply(op, rows, name="", **params), swap), name=name)


def _last(x: Tensor, over: Sequence[int]) -> Tensor:
    """`x` with the axes `over` moved to the end; the order is otherwise kept."""
    order = [axis for axis in range(x.rank) if axis not in over] + sorted(over)
    return x if order == list(range(x.rank)) else copy.cont(view.permute(x, order))


def _shaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return view.reshape(x, shape) if x.is_contiguous else copy.cont(x, shape)


def _reduced(x: Tensor, over: Iterable[int], *, keepdims: bool) -> tuple[int, ...]:
    """The shape of `x` without the axes `over`, or with size 1 there."""
    gone = frozenset(over)
    if keepdims:
        return tuple(1 if axis in gone else n for axis, n in enumerate(x.shape))
    return tuple(n for axis, n in enumerate(x.shape) if axis not in gone)


def top_k(x: Tensor, k: int, *, name: str = "") -> Tensor:
    """i32 indices of the `k` largest elements of each row of f32 `x`, in any order.

    >>> x = tp.input("x", (2, 50), tp.F32)
    >>> tp.top_k(x, 5).shape
    (2, 5)
    """
    return apply(TOP_K, x, k=k, name=name)


def count_equal(a: Tensor, b: Tensor, *, name: str = "") -> Tensor:
    """The number of elements that are equal in i32 `a` and `b`, of one shape: an i64 scalar.

    >>> a = tp.input("a", (5,), tp.I32)
    >>> b = tp.input("b", (5,), tp.I32)
    >>> tp.count_equal(a, b).dtype.name
    'i64'
    """
    return apply(COUNT_EQUAL, a, b, name=name)
