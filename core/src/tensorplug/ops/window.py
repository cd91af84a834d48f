"""Attention in windows of an image, and relative positions within them."""

from tensorplug.dtypes import F32
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rules import ONLY_F32, REAL, always, same_shape_as, same_shapes, same_type_as
from tensorplug.ops.split import Way, any_of, linear, ways
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op

ORIGIN = "Kirillov et al. 2023, arXiv:2304.02643; Li et al. 2022, arXiv:2203.16527"


def _parted(call: Call) -> Shape:
    x, w = call["x"], call.int("w")
    if w < 1 or x.ne[3] != 1:
        raise call.fail(f"w = {w} is not positive, or x is more than one image")
    return (x.ne[0], w, w, -(-x.ne[1] // w) * -(-x.ne[2] // w)), 4


WIN_PART = register_op(
    Op(
        "win_part",
        sources=(Source("x", ONLY_F32),),
        params=(Param("w", int, required=True),),
        shape=_parted,
        dtype=always(F32),
        split=any_of(ways(Way({"x": 0}, 0)), linear("x")),
        formula="y[:, :, :, k] = the k-th window of w x w positions, 0 beyond the edges of x",
        origin=ORIGIN,
    )
)


def _joined(call: Call) -> Shape:
    x, w, wide, high = call["x"], call.int("w"), call.int("w0"), call.int("h0")
    if min(w, wide, high) < 1 or x.ne[1:3] != (w, w):
        raise call.fail(f"x must be windows of {w} x {w}, of an image of {wide} x {high}")
    if x.ne[3] != -(-wide // w) * -(-high // w):
        raise call.fail(f"x holds {x.ne[3]} windows, {-(-wide // w) * -(-high // w)} are needed")
    return (x.ne[0], wide, high, 1), 3


WIN_UNPART = register_op(
    Op(
        "win_unpart",
        sources=(Source("x", ONLY_F32),),
        params=tuple(Param(name, int, required=True) for name in ("w0", "h0", "w")),
        shape=_joined,
        dtype=always(F32),
        split=any_of(ways(Way({"x": 0}, 0)), linear("x")),
        formula="the image whose windows are x",
        origin=ORIGIN,
    )
)


def _relative(call: Call) -> Shape:
    x, q, k = call["x"], call.int("qh"), call.int("kh")
    if q != k or q < 1:
        raise call.fail(f"qh = {q} and kh = {k} must be equal and positive")
    if x.ne[1] != 2 * q - 1 or x.ne[2:] != (1, 1):
        raise call.fail(f"x must have {2 * q - 1} rows, one for each distance")
    return (x.ne[0], k, q, 1), 3


GET_REL_POS = register_op(
    Op(
        "get_rel_pos",
        sources=(Source("x", REAL),),
        params=(Param("qh", int, required=True), Param("kh", int, required=True)),
        shape=_relative,
        dtype=same_type_as("x"),
        split=ways(Way({"x": 0}, 0)),
        formula="y[:, k, q] = x[:, kh - 1 - k + q]",
        origin=ORIGIN,
    )
)


def _positions(call: Call) -> None:
    x, w, h = call["x"], call["pw"], call["ph"]
    keys, rows, columns, heads = w.ne
    if h.ne != w.ne:
        raise call.fail("pw and ph differ in shape")
    if x.ne != (keys * keys, rows * columns, heads, 1):
        raise call.fail(f"x must be {keys * keys} keys for {rows * columns} queries of {heads}")


ADD_REL_POS = register_op(
    Op(
        "add_rel_pos",
        sources=tuple(Source(name, ONLY_F32) for name in ("x", "pw", "ph")),
        shape=same_shape_as("x"),
        dtype=always(F32),
        check=(same_shapes("pw", "ph"), _positions),
        in_place=("x",),
        split=any_of(ways(Way({"x": 2, "pw": 3, "ph": 3}, 2)), linear("x", "pw", "ph")),
        formula="y[i * n + j, q] = x[i * n + j, q] + ph[i, q] + pw[j, q], n = ne[0] of pw",
        origin=ORIGIN,
    )
)


def win_part(x: Tensor, w: int, *, name: str = "") -> Tensor:
    """Cut an f32 image `x` [channels, width, height] into windows [channels, w, w, windows].

    Windows go along the width first; those at the right and lower edge are filled up with zeros.

    >>> x = tp.input("x", (10, 12, 16), tp.F32)
    >>> tp.win_part(x, 5).shape
    (6, 5, 5, 16)
    """
    return apply(WIN_PART, x, w=w, name=name)


def win_unpart(x: Tensor, w0: int, h0: int, w: int, *, name: str = "") -> Tensor:
    """Put f32 windows [channels, w, w, n] together into an image [channels, w0, h0].

    This is the inverse of `win_part`. Raises ShapeError.

    >>> x = tp.input("x", (6, 5, 5, 16), tp.F32)
    >>> tp.win_unpart(x, 12, 10, 5).shape
    (10, 12, 16)
    """
    return apply(WIN_UNPART, x, w0=w0, h0=h0, w=w, name=name)


def get_rel_pos(x: Tensor, qh: int, kh: int, *, name: str = "") -> Tensor:
    """Rows of `x` [channels, 2 * qh - 1] by the distance of query and key: [channels, kh, qh].

    `qh` and `kh` must be equal; `x` is f32, f16 or bf16, in `ne` order. Raises ShapeError.

    >>> x = tp.input("x", (7, 16), tp.F32)
    >>> tp.get_rel_pos(x, 4, 4).shape
    (4, 4, 16)
    """
    return apply(GET_REL_POS, x, qh=qh, kh=kh, name=name)


def add_rel_pos(x: Tensor, pw: Tensor, ph: Tensor, *, name: str = "") -> Tensor:
    """Add relative position terms to attention scores `x` [keys, queries, heads], all f32.

    `pw` has the terms for the column of a key and `ph` those for its row: [n, width, height, heads]
    for n * n keys and width * height queries. Raises ShapeError.

    >>> x = tp.input("x", (2, 16, 16), tp.F32)
    >>> pw = tp.input("pw", (2, 4, 4, 4), tp.F32)
    >>> ph = tp.input("ph", (2, 4, 4, 4), tp.F32)
    >>> tp.add_rel_pos(x, pw, ph).shape
    (2, 16, 16)
    """
    return apply(ADD_REL_POS, x, pw, ph, name=name)
