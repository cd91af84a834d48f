"""Windows of a signal, an image or a volume copied into rows, and summed back."""

from collections.abc import Iterable

from tensorplug.dtypes import F16, F32, DType, DTypeLike
from tensorplug.dtypes import dtype as dtype_of
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rules import ONLY_F32, REAL, always, same_type_as
from tensorplug.ops.split import PARTIAL, Way, any_of, linear, ways
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op
from tensorplug.ops.windows import Along, window, window_counts, window_params

PIXELS = frozenset({F32, F16})
"""Types of signals, images and volumes."""


def _row_type(call: Call) -> DType:
    name = call.params["to"]
    assert isinstance(name, str)
    wanted = dtype_of(name)
    if wanted not in REAL:
        raise call.fail(f"windows cannot be written as {name}; choose f32, f16 or bf16")
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
        raise call.fail("x must have at most three dimensions: length, channels, batch")
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
        formula="y[i] = sum of the elements of grad that im2col copies from x[i]",
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
        raise call.fail(f"nothing is left after p0 = {crop} elements are cropped from both ends")
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
    stride: Along = 1,
    padding: Along = 0,
    dilation: Along = 1,
    is_2d: bool = True,
    to: DTypeLike = "f16",
    name: str = "",
) -> Tensor:
    """Copy each window of `x` that a convolution with `kernel` would use into a row.

    The product of these rows with the filters is the convolution. `kernel` [any, channels, kh, kw],
    of which only the sizes are used, and `x` [n, channels, h, w], f32 or f16, give [n, out h,
    out w, channels * kh * kw]. Without `is_2d`, `kernel` [any, channels, k] and `x` [n, channels,
    l] give [n, out l, channels * k]. `stride`, `padding` and `dilation` are numbers for all axes or
    one for each axis. The result has the type `to`: f32, f16 or bf16. Raises ShapeError.

    >>> kernel = tp.input("kernel", (8, 3, 5, 5), tp.F32)
    >>> x = tp.input("x", (1, 3, 28, 28), tp.F32)
    >>> tp.im2col(kernel, x).shape
    (1, 24, 24, 75)
    """
    slide = _slide("im2col", is_2d=is_2d, stride=stride, padding=padding, dilation=dilation)
    return apply(IM2COL, kernel, x, **slide, is_2d=is_2d, to=dtype_of(to).name, name=name)


def im2col_back(
    grad: Tensor,
    kernel: Tensor,
    shape: tuple[int, ...],
    *,
    stride: Along = 1,
    padding: Along = 0,
    dilation: Along = 1,
    is_2d: bool = True,
    name: str = "",
) -> Tensor:
    """Gradient of `im2col` with respect to its `x`, which has this `shape`; f32.

    `grad` is the gradient of the result of `im2col` with the same `kernel` and parameters. Raises
    ShapeError.

    >>> grad = tp.input("grad", (1, 24, 24, 75), tp.F32)
    >>> kernel = tp.input("kernel", (8, 3, 5, 5), tp.F32)
    >>> tp.im2col_back(grad, kernel, (1, 3, 28, 28)).shape
    (1, 3, 28, 28)
    """
    slide = _slide("im2col_back", is_2d=is_2d, stride=stride, padding=padding, dilation=dilation)
    ne = tuple(reversed(shape))
    return apply(IM2COL_BACK, grad, kernel, ne=ne, **slide, is_2d=is_2d, name=name)


def im2col_3d(
    kernel: Tensor,
    x: Tensor,
    n_channels: int,
    *,
    stride: Along = 1,
    padding: Along = 0,
    dilation: Along = 1,
    to: DTypeLike = "f16",
    name: str = "",
) -> Tensor:
    """`im2col` of volumes: rows of kw * kh * kd * channels elements.

    `kernel` [any * channels, kd, kh, kw] and `x` [n * channels, d, h, w], f32 or f16, give
    [n * out d, out h, out w, row] of type `to`: f32, f16 or bf16. Raises ShapeError.

    >>> kernel = tp.input("kernel", (24, 3, 3, 3), tp.F32)
    >>> x = tp.input("x", (3, 8, 16, 16), tp.F32)
    >>> tp.im2col_3d(kernel, x, 3).shape
    (6, 14, 14, 81)
    """
    slide = window("im2col_3d", 3, stride=stride, padding=padding, dilation=dilation)
    return apply(
        IM2COL_3D,
        kernel,
        x,
        n_channels=n_channels,
        **slide,
        to=dtype_of(to).name,
        name=name,
    )


def col2im_1d(
    x: Tensor, *, channels: int, stride: int = 1, padding: int = 0, name: str = ""
) -> Tensor:
    """Add up overlapping pieces of a signal; the result has the type of `x`.

    `x` [t, channels * k] holds `t` pieces of `k` elements for each channel; piece i starts at
    element i * `stride`. The result is [channels, (t - 1) * stride + k - 2 * padding]: `padding`
    elements are cropped at both ends. Raises ShapeError.

    >>> x = tp.input("x", (10, 8), tp.F32)
    >>> tp.col2im_1d(x, channels=2, stride=2).shape
    (2, 22)
    """
    return apply(COL2IM_1D, x, s0=stride, oc=channels, p0=padding, name=name)


def _slide(
    where: str, *, is_2d: bool, stride: Along, padding: Along, dilation: Along
) -> dict[str, int]:
    return window(where, 2 if is_2d else 1, stride=stride, padding=padding, dilation=dilation)
