"""Pooling: the largest element or the mean of each window of a signal or an image; gradients."""

import math
from collections.abc import Iterable

from tensorplug.dtypes import F16, F32
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rules import ONLY_F32, always
from tensorplug.ops.split import PARTIAL, Way, aligned
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op
from tensorplug.ops.windows import Along, by_dim

KINDS = ("max", "avg")
_PIXELS = frozenset({F32, F16})


def _pooled(call: Call, dims: int) -> Shape:
    x, kind = call["x"], call.params["kind"]
    if kind not in KINDS:
        raise call.fail(f"unknown kind {kind!r}; kinds are {', '.join(KINDS)}")
    counts = tuple(_count(call, dim, x.ne[dim]) for dim in range(dims))
    a, b, c, d = (*counts, *x.ne[dims:])
    return (a, b, c, d), max(x.rank, dims)


def _count(call: Call, dim: int, size: int) -> int:
    length, step, pad = call.int(f"k{dim}"), call.int(f"s{dim}"), call.params[f"p{dim}"]
    assert isinstance(pad, int | float)
    if length < 1 or step < 1 or not pad >= 0:
        raise call.fail(
            f"k{dim} = {length} and s{dim} = {step} must be positive, p{dim} = {pad:g} not negative"
        )
    if math.isinf(pad):
        raise call.fail(f"p{dim} = {pad:g} is not finite")
    # A padding of half an element is a padding of one element at the end only.
    room = int(size + 2 * pad)
    if length > room:
        raise call.fail(
            f"a window of {length} does not fit into the {room} elements of dimension {dim}"
        )
    return (room - length) // step + 1


def _signal(call: Call) -> Shape:
    return _pooled(call, 1)


def _image(call: Call) -> Shape:
    return _pooled(call, 2)


def _signal_parts(call: Call) -> Iterable[Way]:
    yield from aligned("x", axes=(1, 2, 3))(call)
    yield from _summed(call, "x")


def _image_parts(call: Call) -> Iterable[Way]:
    yield from aligned("x", axes=(2, 3))(call)
    yield from _summed(call, "x")


def _summed(call: Call, name: str) -> Iterable[Way]:
    if call.params["kind"] == "avg":
        yield Way({name: PARTIAL}, PARTIAL)


POOL_1D = register_op(
    Op(
        "pool_1d",
        sources=(Source("x", _PIXELS),),
        params=(
            Param("kind", str, default="max"),
            Param("k0", int, required=True),
            Param("s0", int, default=1),
            Param("p0", int, default=0),
        ),
        shape=_signal,
        dtype=always(F32),
        split=_signal_parts,
        formula="y[u] = max or mean of the elements of x in window u, which starts at u*s0 - p0; "
        "for a window without elements the lowest f32, or 0",
    )
)

_WINDOW = (
    Param("kind", str, default="max"),
    Param("k0", int, required=True),
    Param("k1", int, required=True),
    Param("s0", int, default=1),
    Param("s1", int, default=1),
    Param("p0", float, default=0.0),
    Param("p1", float, default=0.0),
)

POOL_2D = register_op(
    Op(
        "pool_2d",
        sources=(Source("x", _PIXELS),),
        params=_WINDOW,
        shape=_image,
        dtype=always(F32),
        split=_image_parts,
        formula="y = max of the elements of x in each window (at least the lowest f32), or their "
        "sum / (k0*k1)",
    )
)


def _source(call: Call) -> Shape:
    grad, x, wanted = call["grad"], call["x"], _image(call)[0]
    if grad.ne != wanted:
        raise call.fail(f"grad must have ne {wanted}, as the windows of x")
    return x.ne, x.rank


def _back_parts(call: Call) -> Iterable[Way]:
    yield from aligned("grad", "x", axes=(2, 3))(call)
    yield Way({"grad": PARTIAL}, PARTIAL)


POOL_2D_BACK = register_op(
    Op(
        "pool_2d_back",
        sources=(Source("grad", ONLY_F32), Source("x", _PIXELS)),
        params=_WINDOW,
        shape=_source,
        dtype=always(F32),
        split=_back_parts,
        formula="y = sum over windows of grad, given to the first largest element of the window, "
        "or grad / (k0*k1) to all its elements",
    )
)


def pool_1d(
    x: Tensor, size: int, *, kind: str = "max", stride: int = 1, padding: int = 0, name: str = ""
) -> Tensor:
    """The largest (`max`) or the mean (`avg`) of each window of `size` elements of the last axis.

    `x` is f32 or f16 [..., n]; the result is f32 [..., (n + 2 * padding - size) // stride + 1].
    Windows may reach `padding` elements beyond the ends of `x`; only elements inside count. A
    window without elements gives the lowest f32 (`max`) or 0 (`avg`). Raises ShapeError.

    >>> x = tp.input("x", (2, 8), tp.F32)
    >>> tp.pool_1d(x, 2, stride=2).shape
    (2, 4)
    """
    return apply(POOL_1D, x, kind=kind, k0=size, s0=stride, p0=padding, name=name)


def pool_2d(
    x: Tensor,
    size: Along,
    *,
    kind: str = "max",
    stride: Along = 1,
    padding: float | tuple[float, ...] = 0.0,
    name: str = "",
) -> Tensor:
    """The largest (`max`) or the mean (`avg`) of each window of images [..., h, w]; f32.

    `x` is f32 or f16. `size`, `stride` and `padding` are numbers for both axes or pairs (height,
    width). Elements beyond the edges are ignored by `max` and count as 0 in `avg` (in `pool_1d`
    they do not count). A padding of 0.5 is one element at the end only. Raises ShapeError.

    >>> x = tp.input("x", (1, 3, 28, 28), tp.F32)
    >>> tp.pool_2d(x, 2, kind="avg", stride=2).shape
    (1, 3, 14, 14)
    """
    window = _image_window("pool_2d", size, stride, padding)
    return apply(POOL_2D, x, kind=kind, **window, name=name)


def pool_2d_back(
    grad: Tensor,
    x: Tensor,
    size: Along,
    *,
    kind: str = "max",
    stride: Along = 1,
    padding: float | tuple[float, ...] = 0.0,
    name: str = "",
) -> Tensor:
    """Gradient of `pool_2d(x)` with respect to `x`: f32 of the shape of `x`.

    `grad` is the gradient of the result. If several elements of a window are equally large, the
    first of them gets the whole gradient of the window. Raises ShapeError.

    >>> grad = tp.input("grad", (1, 3, 14, 14), tp.F32)
    >>> x = tp.input("x", (1, 3, 28, 28), tp.F32)
    >>> tp.pool_2d_back(grad, x, 2, stride=2).shape
    (1, 3, 28, 28)
    """
    window = _image_window("pool_2d_back", size, stride, padding)
    return apply(POOL_2D_BACK, grad, x, kind=kind, **window, name=name)


def _image_window(
    where: str, size: Along, stride: Along, padding: float | tuple[float, ...]
) -> dict[str, int | float]:
    return {
        **by_dim(where, "size", "k", size, 2),
        **by_dim(where, "stride", "s", stride, 2),
        **by_dim(where, "padding", "p", padding, 2),
    }
