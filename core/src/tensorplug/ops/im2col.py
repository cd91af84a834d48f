"""Windows of a signal, an image or a volume laid side by side as rows, and summed back."""

from collections.abc import Iterable

from tensorplug.dtypes import F16, F32, DType, DTypeLike
from tensorplug.dtypes import dtype as dtype_of
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rules import ONLY_F32, REAL, always, same_type_as
from tensorplug.ops.split import PARTIAL, Way, any_of, linear, ways
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op
from tensorplug.ops.windows import window_counts, window_params

PIXELS = frozenset({F32, F16})
"""Types of what windows slide over."""


def _row_type(call: Call) -> DType:
    name = call.params["to"]
    assert isinstance(name, str)
    wanted = dtype_of(name)
    if wanted not in REAL:
        raise call.fail(f"windows are written as f32, f16 or bf16, not as {name}")
    return wanted


def _counted(call: Call, ne: tuple[int, ...]) -> Shape:
    """The shape of the windows of an image of sizes `ne`."""
    kernel = call["kernel"]
    channels = 2 if call.params["is_2d"] else 1
    if kernel.ne[channels] != ne[channels]:
        raise call.fail(
            f"kernel has {kernel.ne[channels]} channels, ne[{channels}], and x has {ne[channels]}"
        )
    taps, sizes = kernel.ne[:channels], ne[:channels]
    if channels == 2:
        wide, high = window_counts(call, taps, sizes)
        return (taps[0] * taps[1] * ne[2], wide, high, ne[3]), 4
    if ne[3] != 1:
        raise call.fail("x has three dimensions at most: length, channels, batch")
    (long,) = window_counts(call, taps, sizes)
    return (taps[0] * ne[1], long, ne[2], 1), 3


def _windows(call: Call) -> Shape:
    return _counted(call, call["x"].ne)


def _window_parts(call: Call) -> Iterable[Way]:
    yield Way({"x": PARTIAL}, PARTIAL)
    channels = 2 if call.params["is_2d"] else 1
    yield Way({"kernel": channels, "x": channels}, 0)
    yield Way({"x": channels + 1}, channels + 1)


IM2COL = register_op(
    Op(
        "im2col",
        sources=(Source("kernel", REAL), Source("x", PIXELS)),
        params=(
            *window_params(2),
            Param("is_2d", bool, default=True),
            Param("to", str, default="f16"),
        ),
        shape=_windows,
        dtype=_row_type,
        split=_window_parts,
        formula="y[i + KW*(j + KH*c), u, v, n] = x[u*s0 + i*d0 - p0, v*s1 + j*d1 - p1, c, n]",
    )
)


def _image(call: Call) -> Shape:
    grad, ne = call["grad"], call.params["ne"]
    assert isinstance(ne, tuple)
    sizes = tuple(n for n in ne if isinstance(n, int) and n >= 0)
    if len(sizes) != len(ne) or not 1 <= len(ne) <= 4:
        raise call.fail(f"ne = {ne} must be one to four sizes")
    a, b, c, d = (*sizes, 1, 1, 1)[:4]
    wanted = _counted(call, (a, b, c, d))[0]
    if grad.ne != wanted:
        raise call.fail(f"grad must have ne {wanted}, as the windows of an image of ne {ne}")
    return (a, b, c, d), len(ne)


IM2COL_BACK = register_op(
    Op(
        "im2col_back",
        sources=(Source("grad", ONLY_F32), Source("kernel", REAL)),
        params=(
            Param("ne", tuple, required=True),
            *window_params(2),
            Param("is_2d", bool, default=True),
        ),
        shape=_image,
        dtype=always(F32),
        split=linear("grad"),
        formula="each element of x is the sum of what windows say of it; undoes im2col's copying",
        origin="the transpose of im2col",
    )
)


def _volume_windows(call: Call) -> Shape:
    kernel, x, channels = call["kernel"], call["x"], call.int("n_channels")
    if channels < 1 or kernel.ne[3] % channels or x.ne[3] % channels:
        raise call.fail(f"n_channels = {channels} does not divide ne[3] of kernel and x")
    wide, high, deep = window_counts(call, kernel.ne[:3], x.ne[:3])
    row = kernel.ne[0] * kernel.ne[1] * kernel.ne[2] * channels
    return (row, wide, high, deep * (x.ne[3] // channels)), 4


IM2COL_3D = register_op(
    Op(
        "im2col_3d",
        sources=(Source("kernel", REAL), Source("x", PIXELS)),
        params=(
            Param("n_channels", int, required=True),
            *window_params(3),
            Param("to", str, default="f16"),
        ),
        shape=_volume_windows,
        dtype=_row_type,
        split=linear("x"),
        formula="rows of KW*KH*KD*channels elements, one for each window; dim 3 is depth, batch",
    )
)


def _signal(call: Call) -> Shape:
    x, stride, channels, crop = call["x"], *(call.int(name) for name in ("s0", "oc", "p0"))
    if stride < 1 or channels < 1 or crop < 0:
        raise call.fail(
            f"s0 = {stride} and oc = {channels} must be positive, p0 = {crop} not negative"
        )
    if x.ne[2:] != (1, 1) or x.ne[0] % channels or not x.size:
        raise call.fail(f"x must be a matrix with rows of {channels} times the kernel's length")
    length = (x.ne[1] - 1) * stride + x.ne[0] // channels - 2 * crop
    if length < 1:
        raise call.fail(f"nothing is left once p0 = {crop} elements are cropped from both ends")
    return (length, channels, 1, 1), 2


COL2IM_1D = register_op(
    Op(
        "col2im_1d",
        sources=(Source("x", REAL),),
        params=(
            Param("s0", int, default=1),
            Param("oc", int, required=True),
            Param("p0", int, default=0),
        ),
        shape=_signal,
        dtype=same_type_as("x"),
        split=any_of(ways(Way({"x": PARTIAL}, PARTIAL))),
        formula="y[t*s0 + k - p0, c] is the sum of x[k + K*c, t] over k and t",
    )
)


def im2col(
    kernel: Tensor,
    x: Tensor,
    *,
    s0: int = 1,
    s1: int = 1,
    p0: int = 0,
    p1: int = 0,
    d0: int = 1,
    d1: int = 1,
    is_2d: bool = True,
    to: DTypeLike = "f16",
    name: str = "",
) -> Tensor:
    """Copy the windows that `kernel` sees of `x` into rows, so that a product is a convolution.

    In `ne` order: `kernel` [kw, kh, channels, any] (only its sizes count) and `x` [w, h, channels,
    n], f32 or f16, give [kw * kh * channels, out w, out h, n]. Where not `is_2d`, `kernel` [k,
    channels, any] and `x` [l, channels, n] give [k * channels, out l, n], and `s1`, `p1` and `d1`
    mean nothing. The result has the type `to`: f32, f16 or bf16. Raises ShapeError.
    """
    strides = {"s0": s0, "s1": s1, "p0": p0, "p1": p1, "d0": d0, "d1": d1}
    return apply(IM2COL, kernel, x, **strides, is_2d=is_2d, to=dtype_of(to).name, name=name)


def im2col_back(
    grad: Tensor,
    kernel: Tensor,
    ne: tuple[int, ...],
    *,
    s0: int = 1,
    s1: int = 1,
    p0: int = 0,
    p1: int = 0,
    d0: int = 1,
    d1: int = 1,
    is_2d: bool = True,
    name: str = "",
) -> Tensor:
    """Gradient of the `x` of `im2col`, which had the sizes `ne`; f32.

    `grad` is that of the result of `im2col` with the same `kernel` and parameters. Raises
    ShapeError.
    """
    strides = {"s0": s0, "s1": s1, "p0": p0, "p1": p1, "d0": d0, "d1": d1}
    return apply(IM2COL_BACK, grad, kernel, ne=tuple(ne), **strides, is_2d=is_2d, name=name)


def im2col_3d(
    kernel: Tensor,
    x: Tensor,
    n_channels: int,
    *,
    s0: int = 1,
    s1: int = 1,
    s2: int = 1,
    p0: int = 0,
    p1: int = 0,
    p2: int = 0,
    d0: int = 1,
    d1: int = 1,
    d2: int = 1,
    to: DTypeLike = "f16",
    name: str = "",
) -> Tensor:
    """`im2col` of volumes: rows of kw * kh * kd * channels elements.

    In `ne` order: `kernel` [kw, kh, kd, channels * any] and `x` [w, h, d, channels * n], f32 or
    f16, give [row, out w, out h, out d * n] of type `to`: f32, f16 or bf16. Raises ShapeError.
    """
    strides = {"s0": s0, "s1": s1, "s2": s2, "p0": p0, "p1": p1, "p2": p2}
    dilations = {"d0": d0, "d1": d1, "d2": d2}
    return apply(
        IM2COL_3D,
        kernel,
        x,
        n_channels=n_channels,
        **strides,
        **dilations,
        to=dtype_of(to).name,
        name=name,
    )


def col2im_1d(x: Tensor, *, s0: int = 1, oc: int, p0: int = 0, name: str = "") -> Tensor:
    """Sum overlapping pieces of a signal where each belongs; the type of `x`.

    In `ne` order: `x` [k * oc, t] holds, for each of `t` steps of `s0`, the k elements of `oc`
    channels; the result is [(t - 1) * s0 + k - 2 * p0, oc], cropped by `p0` at both ends. Raises
    ShapeError.
    """
    return apply(COL2IM_1D, x, s0=s0, oc=oc, p0=p0, name=name)
