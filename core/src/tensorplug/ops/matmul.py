"""Matrix products: rows against rows, with f32 results."""

from collections.abc import Iterable

from tensorplug.dtypes import F32, INTEGERS
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rules import ANY, IDS, ONLY_F32, REAL, always, divides, repeat_over_batch
from tensorplug.ops.split import PARTIAL, Way, ways
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op

WEIGHTS = ANY - INTEGERS
PRECISIONS = ("default", "f32")


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
        raise call.fail(f"unknown precision {call.params['precision']!r}; it is {wanted}")
    return (w.ne[1], x.ne[1], x.ne[2], x.ne[3]), max(w.rank, x.rank)


def _product_parts(call: Call) -> Iterable[Way]:
    yield Way({"w": 1}, 0)
    yield Way({"x": 1}, 1)
    yield Way({"w": 0, "x": 0}, PARTIAL)
    yield Way({"x": PARTIAL}, PARTIAL)
    for axis in (2, 3):
        # A w that repeats is cut where its repetitions are, or not at all.
        if call["w"].ne[axis] > 1:
            yield Way({"w": axis, "x": axis}, axis)
        else:
            yield Way({"x": axis}, axis)


MUL_MAT = register_op(
    Op(
        "mul_mat",
        sources=(Source("w", WEIGHTS), Source("x", REAL)),
        params=(Param("precision", str, default="default"),),
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
        raise call.fail("w and x have three dimensions at most, ids two")
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
    return (a.ne[0], b.ne[0], b.ne[2], b.ne[3]), max(a.rank, b.rank)


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


def mul_mat(w: Tensor, x: Tensor, *, precision: str = "default", name: str = "") -> Tensor:
    """Product of the rows of `x` with the rows of `w`: f32 [n, m, ...].

    `w` is [k, n, a, b] of any float or block type, `x` is [k, m, c, d] f32, f16 or bf16; `c` and
    `d` are multiples of `a` and `b`: batches of `w` repeat in blocks, so that neighbours share one
    (index i of `c` takes i // (c // a)). In NumPy order this is `x @ w.T`. Raises ShapeError.

    With the default `precision` a device may round `x` to the type of `w`, to 16 bits, or to bytes
    with scales where `w` has blocks; with `f32` it does not. Results that depend on NaN are NaN on
    every device, and no others. Those that depend on an infinity are infinite or NaN.
    """
    return apply(MUL_MAT, w, x, precision=precision, name=name)


def mul_mat_id(w: Tensor, x: Tensor, ids: Tensor, *, name: str = "") -> Tensor:
    """Product of each row of `x` with the expert matrix that `ids` names: f32 [n, used, tokens].

    `w` is [k, n, experts], `x` is [k, used or 1, tokens], `ids` is i32 [used, tokens]. The id -1
    gives a row of zeros. Any other id that names no expert is an error, of which
    `tensorplug.ops.ids` says when it is raised.
    """
    return apply(MUL_MAT_ID, w, x, ids, name=name)


def out_prod(a: Tensor, b: Tensor, *, name: str = "") -> Tensor:
    """Sum of outer products of the rows of `a` [m, k, ...] and `b` [n, k, ...]: f32 [m, n, ...].

    `a` is of any float or block type and repeats in blocks over dimensions 2 and 3 of `b`, which is
    f32, as `w` of `mul_mat` does.
    """
    return apply(OUT_PROD, a, b, name=name)
