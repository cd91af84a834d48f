"""Diagonals and triangles of matrices."""

from tensorplug.dtypes import F32
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rules import ONLY_F32, REAL, always, same_shape_as, same_type_as
from tensorplug.ops.split import Way, aligned, any_of, linear, ways
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op

TRIANGLES = ("upper_diag", "upper", "lower_diag", "lower")
"""Kinds of triangles: the upper or lower half of a matrix, with or without the diagonal."""


def _squared(call: Call) -> Shape:
    x = call["x"]
    if x.ne[1] != 1:
        raise call.fail("x must be vectors: ne[1] is 1")
    return (x.ne[0], x.ne[0], x.ne[2], x.ne[3]), max(x.rank, 2)


DIAG = register_op(
    Op(
        "diag",
        sources=(Source("x", ONLY_F32),),
        shape=_squared,
        dtype=always(F32),
        split=any_of(aligned("x", axes=(2, 3)), linear("x")),
        formula="y[i, j] = x[i] if i = j else 0",
    )
)

DIAG_MASK_ZERO = register_op(
    Op(
        "diag_mask_zero",
        sources=(Source("x", REAL),),
        params=(Param("n_past", int, default=0),),
        shape=same_shape_as("x"),
        dtype=same_type_as("x"),
        in_place=("x",),
        split=any_of(aligned("x", axes=(2, 3)), linear("x")),
        formula="y[i, j] = 0 if i > n_past + j else x[i, j]",
    )
)


def _triangle(call: Call) -> None:
    if call["x"].ne[0] != call["x"].ne[1]:
        raise call.fail("x must be square")
    if call.params["kind"] not in TRIANGLES:
        raise call.fail(f"unknown kind {call.params['kind']!r}; kinds are {', '.join(TRIANGLES)}")


TRI = register_op(
    Op(
        "tri",
        sources=(Source("x", REAL),),
        params=(Param("kind", str, required=True),),
        shape=same_shape_as("x"),
        dtype=same_type_as("x"),
        check=(_triangle,),
        split=any_of(aligned("x", axes=(2, 3)), linear("x")),
        formula="y = x in one half of each matrix, 0 in the other",
    )
)


def _solvable(call: Call) -> None:
    a, b = call["a"], call["b"]
    if a.ne[0] != a.ne[1] or a.ne[1] != b.ne[1] or a.ne[2:] != b.ne[2:]:
        raise call.fail("a must be square, with the number of rows and the batch of b")


SOLVE_TRI = register_op(
    Op(
        "solve_tri",
        sources=(Source("a", ONLY_F32), Source("b", ONLY_F32)),
        shape=same_shape_as("b"),
        dtype=always(F32),
        check=(_solvable,),
        split=any_of(aligned("a", "b", axes=(2, 3)), ways(Way({"b": 0}, 0)), linear("b")),
        formula="the x with a x = b; only the lower triangle of a is read",
    )
)


def diag(x: Tensor, *, name: str = "") -> Tensor:
    """Matrices with the f32 vectors `x` [n, 1, ...] on their diagonals: [n, n, ...].

    >>> x = tp.input("x", (1, 4), tp.F32)
    >>> tp.diag(x).shape
    (4, 4)
    """
    return apply(DIAG, x, name=name)


def diag_mask_zero(x: Tensor, *, n_past: int = 0, name: str = "") -> Tensor:
    """f32, f16 or bf16 `x` with 0 in each row j right of column `n_past` + j.

    >>> x = tp.input("x", (4, 6), tp.F32)
    >>> tp.diag_mask_zero(x, n_past=2).shape
    (4, 6)
    """
    return apply(DIAG_MASK_ZERO, x, n_past=n_past, name=name)


def tri(x: Tensor, kind: str, *, name: str = "") -> Tensor:
    """f32 square matrices `x` with 0 outside the triangle `kind`, one of TRIANGLES.

    >>> x = tp.input("x", (4, 4), tp.F32)
    >>> tp.tri(x, "lower").shape
    (4, 4)
    """
    return apply(TRI, x, kind=kind, name=name)


def solve_tri(a: Tensor, b: Tensor, *, name: str = "") -> Tensor:
    """Solve a x = b for f32 `a` [n, n, ...], lower triangular, and `b` [k, n, ...].

    Elements above the diagonal of `a` are not read. Zeros on the diagonal give infinities or NaN.

    >>> a = tp.input("a", (4, 4), tp.F32)
    >>> b = tp.input("b", (4, 2), tp.F32)
    >>> tp.solve_tri(a, b).shape
    (4, 2)
    """
    return apply(SOLVE_TRI, a, b, name=name)
