"""Matrix products: dot products of the rows of two tensors, with f32 results."""

from collections.abc import Iterable

from tensorplug.dtypes import F32, INTEGERS
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rules import ANY, IDS, ONLY_F32, REAL, always, divides, repeat_over_batch
from tensorplug.ops.split import PARTIAL, Way, ways
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op

WEIGHTS = ANY - INTEGERS
PRECISIONS = ("default", "f32")
HINTS = ("", "hadamard")
"""What a program may promise of `w`; devices may ignore it."""


def _product(call: Call) -> Shape:
    w, x = call["w"], call["x"]
    if w.ne[0] != x.ne[0]:
        raise call.fail(f"rows differ in length: {w.ne[0]} and {x.ne[0]}")
    if not repeat_over_batch(w, x):
        raise call.fail("w does not repeat over dimensions 2 and 3 of x")
    if w.ne[0] > 1 and w.nb[0] > w.nb[1]:
        raise call.fail("w must not be transposed; insert cont()")
    if call.params["precision"] not in PRECISIONS:
        wanted = " or ".join(PRECISIONS)
        raise call.fail(f"unknown precision {call.params['precision']!r}; choose {wanted}")
    _check_hint(call)
    return (w.ne[1], x.ne[1], x.ne[2], x.ne[3]), max(w.rank, x.rank)


def _check_hint(call: Call) -> None:
    w, hint = call["w"], call.params["hint"]
    if hint not in HINTS:
        raise call.fail(f"unknown hint {hint!r}; hints are {', '.join(filter(None, HINTS))}")
    n = w.ne[0]
    if hint == "hadamard" and (w.ne != (n, n, 1, 1) or n < 1 or n & (n - 1)):
        raise call.fail(f"hint hadamard: w of {w.ne} is not one square matrix of a power of two")


def _product_parts(call: Call) -> Iterable[Way]:
    # A part of a matrix is not the matrix that a hint promises.
    if not call.params["hint"]:
        yield Way({"w": 1}, 0)
        yield Way({"w": 0, "x": 0}, PARTIAL)
    yield Way({"x": 1}, 1)
    yield Way({"x": PARTIAL}, PARTIAL)
    for axis in (2, 3):
        # A w that repeats is either cut at the ends of its repetitions, or not cut.
        if call["w"].ne[axis] > 1:
            yield Way({"w": axis, "x": axis}, axis)
        else:
            yield Way({"x": axis}, axis)


MUL_MAT = register_op(
    Op(
        "mul_mat",
        sources=(Source("w", WEIGHTS), Source("x", REAL)),
        params=(Param("precision", str, default="default"), Param("hint", str, default="")),
        shape=_product,
        dtype=always(F32),
        split=_product_parts,
        formula="y[n, m] = sum over k of w[k, n] * x[k, m]",
    )
)


def _expert_product(call: Call) -> Shape:
    w, x, ids = call["w"], call["x"], call["ids"]
    if w.ne[0] != x.ne[0]:
        raise call.fail(f"rows differ in length: {w.ne[0]} and {x.ne[0]}")
    if w.ne[3] != 1 or x.ne[3] != 1 or ids.ne[2:] != (1, 1):
        raise call.fail("w and x must have at most three dimensions, ids at most two")
    if ids.ne[1] != x.ne[2] or not divides(x.ne[1], ids.ne[0]):
        raise call.fail("ids must hold, for each token, a multiple of ne[1] of x")
    return (w.ne[1], ids.ne[0], x.ne[2], 1), 3


MUL_MAT_ID = register_op(
    Op(
        "mul_mat_id",
        sources=(
            Source("w", WEIGHTS),
            Source("x", REAL),
            Source("ids", IDS, rows_of=("w", 2)),
        ),
        shape=_expert_product,
        dtype=always(F32),
        split=ways(
            Way({"w": 1}, 0),
            Way({"w": 0, "x": 0}, PARTIAL),
            Way({"x": 2, "ids": 1}, 2),
            Way({"x": PARTIAL}, PARTIAL),
        ),
        formula="y[:, i, t] = w[:, :, ids[i, t]] applied to x[:, i mod ne[1], t]; zeros for "
        "the id -1",
    )
)


def _outer(call: Call) -> Shape:
    a, b = call["a"], call["b"]
    if a.ne[1] != b.ne[1]:
        raise call.fail(f"a and b differ in the number of rows: {a.ne[1]} and {b.ne[1]}")
    if not repeat_over_batch(a, b):
        raise call.fail("a does not repeat over dimensions 2 and 3 of b")
    return (a.ne[0], b.ne[0], b.ne[2], b.ne[3]), max(a.rank, b.rank, 2)


def _outer_parts(call: Call) -> Iterable[Way]:
    yield Way({"a": 0}, 0)
    yield Way({"b": 0}, 1)
    yield Way({"a": 1, "b": 1}, PARTIAL)
    yield Way({"b": PARTIAL}, PARTIAL)
    for axis in (2, 3):
        if call["a"].ne[axis] > 1:
            yield Way({"a": axis, "b": axis}, axis)
        else:
            yield Way({"b": axis}, axis)


OUT_PROD = register_op(
    Op(
        "out_prod",
        sources=(Source("a", WEIGHTS), Source("b", ONLY_F32)),
        shape=_outer,
        dtype=always(F32),
        split=_outer_parts,
        formula="y[i, j] = sum over k of a[i, k] * b[j, k]",
    )
)


def mul_mat(
    w: Tensor, x: Tensor, *, precision: str = "default", hint: str = "", name: str = ""
) -> Tensor:
    """Dot products of the rows of `x` with the rows of `w`, `x @ w.T` in NumPy: f32 [n, m, c, d].

    `w` is [k, n, a, b] of any float or block type, `x` is [k, m, c, d] of f32, f16 or bf16, in `ne`
    order. `c` and `d` are multiples of `a` and `b`; consecutive batches of `x` share a batch of `w`
    (index i of `c` uses index i // (c // a) of `a`). Raises ShapeError.

    With the default `precision` a device may round `x` to the type of `w`, to 16 bits, or, if `w`
    has a block type, to 8 bits with scales. With `precision="f32"` it does not round `x`. A result
    is NaN on every device if and only if it depends on a NaN. A result that depends on an infinity
    is infinite or NaN.

    With `hint="hadamard"` the caller promises that `w` is the Walsh-Hadamard matrix of its size (a
    power of two), in the order of Sylvester, over the root of the size: devices may compute the
    transform in n log n steps without reading `w`.

    >>> w = tp.input("w", (3, 4), tp.F32)
    >>> x = tp.input("x", (2, 4), tp.F32)
    >>> tp.mul_mat(w, x).shape  # x @ w.T
    (2, 3)
    """
    return apply(MUL_MAT, w, x, precision=precision, hint=hint, name=name)


def mul_mat_id(w: Tensor, x: Tensor, ids: Tensor, *, name: str = "") -> Tensor:
    """Product of each row of `x` with the expert matrix given by `ids`: f32 [n, used, tokens].

    `w` is [k, n, experts], `x` is [k, used or 1, tokens], `ids` is i32 [used, tokens], in `ne`
    order. The id -1 gives a row of zeros. Any other id that is not an expert is an error;
    `tensorplug.ops.ids` says when it is raised.

    >>> w = tp.input("w", (8, 3, 4), tp.F32)
    >>> x = tp.input("x", (5, 2, 4), tp.F32)
    >>> ids = tp.input("ids", (5, 2), tp.I32)
    >>> tp.mul_mat_id(w, x, ids).shape
    (5, 2, 3)
    """
    return apply(MUL_MAT_ID, w, x, ids, name=name)


def out_prod(a: Tensor, b: Tensor, *, name: str = "") -> Tensor:
    """Sum of outer products of the rows of `a` [m, k, ...] and `b` [n, k, ...]: f32 [m, n, ...].

    `a` has any float or block type, `b` is f32; sizes are in `ne` order. Consecutive batches of `b`
    share a batch of `a`, as those of `x` share one of `w` in `mul_mat`. Raises ShapeError.

    >>> a = tp.input("a", (5, 3), tp.F32)
    >>> b = tp.input("b", (5, 2), tp.F32)
    >>> tp.out_prod(a, b).shape
    (2, 3)
    """
    return apply(OUT_PROD, a, b, name=name)
