"""Convolutions as one op each: plain, depthwise and transposed."""

from tensorplug.dtypes import F32
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rules import ONLY_F32, REAL, always
from tensorplug.ops.split import PARTIAL, Way, any_of, linear, ways
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op
from tensorplug.ops.windows import Along, by_dim, window, window_counts, window_params

_SOURCES = (Source("kernel", REAL), Source("x", ONLY_F32))
_SUMS = any_of(linear("x"), linear("kernel"))


def _filtered(call: Call) -> Shape:
    kernel, x = call["kernel"], call["x"]
    if kernel.ne[2] != x.ne[2]:
        raise call.fail(f"kernel has {kernel.ne[2]} channels, ne[2], and x has {x.ne[2]}")
    wide, high = window_counts(call, kernel.ne[:2], x.ne[:2])
    return (wide, high, kernel.ne[3], x.ne[3]), max(x.rank, 3)


CONV_2D = register_op(
    Op(
        "conv_2d",
        sources=_SOURCES,
        params=window_params(2),
        shape=_filtered,
        dtype=always(F32),
        split=any_of(
            _SUMS,
            ways(Way({"kernel": 3}, 2), Way({"x": 3}, 3), Way({"kernel": 2, "x": 2}, PARTIAL)),
        ),
        formula="y[u, v, o, n] = sum over i, j, c of kernel[i, j, c, o] * "
        "x[u*s0 + i*d0 - p0, v*s1 + j*d1 - p1, c, n]",
    )
)


def conv_2d(
    kernel: Tensor,
    x: Tensor,
    *,
    stride: Along = 1,
    padding: Along = 0,
    dilation: Along = 1,
    name: str = "",
) -> Tensor:
    """Convolution of images `x` [n, channels, h, w] (f32): f32 [n, filters, out h, out w].

    `kernel` is [filters, channels, kh, kw], f32, f16 or bf16. `stride`, `padding` (zeros on both
    sides) and `dilation` are numbers for both axes or pairs (height, width). Raises ShapeError.

    >>> kernel = tp.input("kernel", (8, 3, 5, 5), tp.F32)
    >>> x = tp.input("x", (1, 3, 28, 28), tp.F32)
    >>> tp.conv_2d(kernel, x, stride=2, padding=2).shape
    (1, 8, 14, 14)
    """
    slide = window("conv_2d", 2, stride=stride, padding=padding, dilation=dilation)
    return apply(CONV_2D, kernel, x, **slide, name=name)


def _filtered_by_depth(call: Call) -> Shape:
    kernel, x = call["kernel"], call["x"]
    if kernel.ne[2] != 1 or kernel.ne[3] != x.ne[2]:
        raise call.fail(f"kernel must have 1 in ne[2] and the {x.ne[2]} channels of x in ne[3]")
    wide, high = window_counts(call, kernel.ne[:2], x.ne[:2])
    return (wide, high, x.ne[2], x.ne[3]), max(x.rank, 3)


CONV_2D_DW = register_op(
    Op(
        "conv_2d_dw",
        sources=_SOURCES,
        params=window_params(2),
        shape=_filtered_by_depth,
        dtype=always(F32),
        split=any_of(_SUMS, ways(Way({"kernel": 3, "x": 2}, 2), Way({"x": 3}, 3))),
        formula="y[u, v, c, n] = sum over i, j of kernel[i, j, 0, c] * "
        "x[u*s0 + i*d0 - p0, v*s1 + j*d1 - p1, c, n]",
    )
)


def conv_2d_dw(
    kernel: Tensor,
    x: Tensor,
    *,
    stride: Along = 1,
    padding: Along = 0,
    dilation: Along = 1,
    name: str = "",
) -> Tensor:
    """Depthwise convolution, with one filter per channel: f32 [n, channels, out h, out w].

    `kernel` is [channels, 1, kh, kw], f32, f16 or bf16; `x` is f32 [n, channels, h, w]. `stride`,
    `padding` and `dilation` are as in `conv_2d`. Raises ShapeError.

    >>> kernel = tp.input("kernel", (3, 1, 5, 5), tp.F32)
    >>> x = tp.input("x", (1, 3, 28, 28), tp.F32)
    >>> tp.conv_2d_dw(kernel, x, padding=2).shape
    (1, 3, 28, 28)
    """
    slide = window("conv_2d_dw", 2, stride=stride, padding=padding, dilation=dilation)
    return apply(CONV_2D_DW, kernel, x, **slide, name=name)


def _filtered_volume(call: Call) -> Shape:
    kernel, x = call["kernel"], call["x"]
    channels, batch, filters = (
        call.int(name) for name in ("n_channels", "n_batch", "n_channels_out")
    )
    if filters < 1:
        raise call.fail(f"n_channels_out = {filters} must be positive")
    if min(channels, batch) < 1 or x.ne[3] != channels * batch:
        raise call.fail(f"ne[3] of x must be n_channels * n_batch = {channels} * {batch}")
    if kernel.ne[3] != channels * filters:
        raise call.fail(
            f"ne[3] of kernel must be n_channels * n_channels_out = {channels} * {filters}"
        )
    wide, high, deep = window_counts(call, kernel.ne[:3], x.ne[:3])
    return (wide, high, deep, filters * batch), 4


CONV_3D = register_op(
    Op(
        "conv_3d",
        sources=_SOURCES,
        params=(
            *window_params(3),
            Param("n_channels", int, required=True),
            Param("n_batch", int, default=1),
            Param("n_channels_out", int, required=True),
        ),
        shape=_filtered_volume,
        dtype=always(F32),
        split=_SUMS,
        formula="as conv_2d with depth in dim 2; dim 3 is channels and batch, or filters and batch",
    )
)


def conv_3d(
    kernel: Tensor,
    x: Tensor,
    *,
    stride: Along = 1,
    padding: Along = 0,
    dilation: Along = 1,
    n_channels: int,
    n_batch: int = 1,
    n_channels_out: int,
    name: str = "",
) -> Tensor:
    """Convolution of volumes: f32 [n * filters, out d, out h, out w].

    `x` is f32 [n * channels, d, h, w]. `kernel` is [filters * channels, kd, kh, kw], f32, f16 or
    bf16; the channels of one filter are consecutive. `stride`, `padding` and `dilation` are numbers
    or triples (depth, height, width). Raises ShapeError.

    >>> kernel = tp.input("kernel", (24, 3, 3, 3), tp.F32)
    >>> x = tp.input("x", (3, 8, 16, 16), tp.F32)
    >>> tp.conv_3d(kernel, x, n_channels=3, n_channels_out=8).shape
    (8, 6, 14, 14)
    """
    slide = window("conv_3d", 3, stride=stride, padding=padding, dilation=dilation)
    return apply(
        CONV_3D,
        kernel,
        x,
        **slide,
        n_channels=n_channels,
        n_batch=n_batch,
        n_channels_out=n_channels_out,
        name=name,
    )


def _spread_signal(call: Call) -> Shape:
    kernel, x = call["kernel"], call["x"]
    stride, pad, dilation = (call.int(name) for name in ("s0", "p0", "d0"))
    if stride < 1 or dilation < 1 or pad < 0:
        raise call.fail(
            f"s0 = {stride} and d0 = {dilation} must be positive, p0 = {pad} not negative"
        )
    if x.ne[2:] != (1, 1) or kernel.ne[3] != 1:
        raise call.fail("x must have at most two dimensions, kernel at most three")
    if kernel.ne[2] != x.ne[1]:
        raise call.fail(f"kernel has {kernel.ne[2]} channels, ne[2], and x has {x.ne[1]}, ne[1]")
    if not (kernel.ne[0] and x.ne[0]):
        raise call.fail("x and kernel must not be empty")
    length = (x.ne[0] - 1) * stride + (kernel.ne[0] - 1) * dilation + 1 - 2 * pad
    if length < 1:
        raise call.fail(f"nothing is left after p0 = {pad} elements are cropped from both ends")
    return (length, kernel.ne[1], 1, 1), 2


CONV_TRANSPOSE_1D = register_op(
    Op(
        "conv_transpose_1d",
        sources=_SOURCES,
        params=window_params(1),
        shape=_spread_signal,
        dtype=always(F32),
        split=any_of(_SUMS, ways(Way({"kernel": 1}, 1), Way({"kernel": 2, "x": 1}, PARTIAL))),
        formula="y[u*s0 + i*d0 - p0, o] is the sum of kernel[i, o, c] * x[u, c] over i, u and c",
    )
)


def conv_transpose_1d(
    kernel: Tensor,
    x: Tensor,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    name: str = "",
) -> Tensor:
    """Transposed convolution of an f32 signal `x` [channels, l]: f32 [filters, out l].

    `kernel` is [channels, filters, k], f32, f16 or bf16. `out l` is (l - 1) * stride + (k - 1) *
    dilation + 1 - 2 * padding: `padding` elements are cropped from each end. Raises ShapeError.

    >>> kernel = tp.input("kernel", (4, 2, 3), tp.F32)
    >>> x = tp.input("x", (4, 10), tp.F32)
    >>> tp.conv_transpose_1d(kernel, x, stride=2).shape
    (2, 21)
    """
    slide = window("conv_transpose_1d", 1, stride=stride, padding=padding, dilation=dilation)
    return apply(CONV_TRANSPOSE_1D, kernel, x, **slide, name=name)


def _spread_image(call: Call) -> Shape:
    kernel, x, strides = call["kernel"], call["x"], (call.int("s0"), call.int("s1"))
    if min(strides) < 1:
        raise call.fail(f"s0 = {strides[0]} and s1 = {strides[1]} must be positive")
    if kernel.ne[3] != x.ne[2]:
        raise call.fail(f"kernel has {kernel.ne[3]} channels, ne[3], and x has {x.ne[2]}, ne[2]")
    if not all((*kernel.ne[:2], *x.ne[:2])):
        raise call.fail("x and kernel must not be empty")
    wide, high = (
        (n - 1) * step + k for n, step, k in zip(x.ne[:2], strides, kernel.ne[:2], strict=True)
    )
    return (wide, high, kernel.ne[2], x.ne[3]), max(x.rank, 3)


CONV_TRANSPOSE_2D = register_op(
    Op(
        "conv_transpose_2d",
        sources=_SOURCES,
        params=tuple(Param(name, int, default=1) for name in ("s0", "s1")),
        shape=_spread_image,
        dtype=always(F32),
        split=any_of(
            _SUMS,
            ways(Way({"kernel": 2}, 2), Way({"x": 3}, 3), Way({"kernel": 3, "x": 2}, PARTIAL)),
        ),
        formula="y[u*s0 + i, v*s1 + j, o, n] is the sum of kernel[i, j, o, c] * "
        "x[u, v, c, n] over i, j, u, v and c",
    )
)


def conv_transpose_2d(kernel: Tensor, x: Tensor, *, stride: Along = 1, name: str = "") -> Tensor:
    """Transposed convolution of f32 images `x` [n, channels, h, w]: f32 [n, filters, out h, out w].

    `kernel` is [channels, filters, kh, kw], f32, f16 or bf16. `stride` is one number, or (down,
    across). `out h` is (h - 1) * down + kh and `out w` is (w - 1) * across + kw; there is no
    padding. Raises ShapeError.

    >>> kernel = tp.input("kernel", (4, 2, 3, 3), tp.F32)
    >>> x = tp.input("x", (1, 4, 10, 10), tp.F32)
    >>> tp.conv_transpose_2d(kernel, x, stride=2).shape
    (1, 2, 21, 21)
    """
    strides = by_dim("conv_transpose_2d", "stride", "s", stride, 2)
    return apply(CONV_TRANSPOSE_2D, kernel, x, **strides, name=name)
