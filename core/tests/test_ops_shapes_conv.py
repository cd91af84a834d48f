"""What the builders of convolutions and of their windows give and refuse."""

import pytest

import tensorplug as tp
from tensorplug.graph.tensor import Tensor

F32, F16, BF16, Q8_0 = tp.F32, tp.F16, tp.BF16, tp.Q8_0


def t(*ne: int, dtype: tp.DType = F32) -> Tensor:
    """A tensor of sizes `ne` in ggml order."""
    return tp.input("x", ne[::-1], dtype)


# builder call, ne, rank, type
SHAPES = {
    "conv_2d": (lambda: tp.conv_2d(t(3, 2, 4, 5), t(9, 8, 4, 6)), (7, 7, 5, 6), 4, F32),
    "conv_2d of one image": (lambda: tp.conv_2d(t(3, 3, 4, 5), t(9, 8, 4)), (7, 6, 5), 3, F32),
    "conv_2d of one channel": (lambda: tp.conv_2d(t(3, 3), t(9, 8)), (7, 6, 1), 3, F32),
    "conv_2d with f16 filters": (
        lambda: tp.conv_2d(t(3, 3, 4, 5, dtype=F16), t(9, 8, 4), padding=(2, 1)),
        (9, 10, 5),
        3,
        F32,
    ),
    "conv_2d with strides and dilations": (
        lambda: tp.conv_2d(t(3, 2, 1, 1), t(10, 9), stride=(3, 2), dilation=(4, 3)),
        (2, 2, 1),
        3,
        F32,
    ),
    "conv_2d of nothing but padding": (
        lambda: tp.conv_2d(t(2, 2), t(0, 1), padding=1),
        (1, 2, 1),
        3,
        F32,
    ),
    "conv_2d_dw": (lambda: tp.conv_2d_dw(t(3, 2, 1, 4), t(9, 8, 4, 6)), (7, 7, 4, 6), 4, F32),
    "conv_3d": (
        lambda: tp.conv_3d(
            t(3, 2, 1, 20),
            t(9, 8, 7, 24),
            n_channels=4,
            n_batch=6,
            n_channels_out=5,
            stride=(2, 1, 1),
            padding=(0, 0, 1),
        ),
        (9, 7, 4, 30),
        4,
        F32,
    ),
    "conv_transpose_1d": (lambda: tp.conv_transpose_1d(t(3, 5, 4), t(6, 4)), (8, 5), 2, F32),
    "conv_transpose_1d with all parameters": (
        lambda: tp.conv_transpose_1d(t(3, 5), t(6, dtype=F32), stride=2, padding=1, dilation=3),
        (15, 5),
        2,
        F32,
    ),
    "conv_transpose_2d": (
        lambda: tp.conv_transpose_2d(t(3, 2, 5, 4, dtype=F16), t(6, 7, 4, 2), stride=2),
        (13, 14, 5, 2),
        4,
        F32,
    ),
    "im2col": (lambda: tp.im2col(t(3, 2, 4, 5), t(9, 8, 4, 6)), (24, 7, 7, 6), 4, F16),
    "im2col of signals": (
        lambda: tp.im2col(t(3, 4, 5), t(9, 4, 6), is_2d=False, to=F32, stride=2, padding=1),
        (12, 5, 6),
        3,
        F32,
    ),
    "im2col without the parameters of images": (
        lambda: tp.im2col(t(3, 4), t(9, 4), is_2d=False, to="bf16", stride=1, dilation=1),
        (12, 7, 1),
        3,
        BF16,
    ),
    "im2col with the sizes of bf16 filters": (
        lambda: tp.im2col(t(3, 3, 2, dtype=BF16), t(3, 3, 2, dtype=F16)),
        (18, 1, 1),
        4,
        F16,
    ),
    "im2col_3d": (
        lambda: tp.im2col_3d(t(3, 2, 1, 20), t(9, 8, 7, 24), 4, to="f32", dilation=(1, 1, 2)),
        (24, 5, 7, 42),
        4,
        F32,
    ),
    "im2col_back": (
        lambda: tp.im2col_back(t(24, 7, 7, 6), t(3, 2, 4, 5), (6, 4, 8, 9)),
        (9, 8, 4, 6),
        4,
        F32,
    ),
    "im2col_back of a signal": (
        lambda: tp.im2col_back(t(12, 7), t(3, 4), (4, 9), is_2d=False),
        (9, 4),
        2,
        F32,
    ),
    "col2im_1d": (lambda: tp.col2im_1d(t(12, 6), channels=3, stride=2, padding=1), (12, 3), 2, F32),
    "col2im_1d of bf16": (lambda: tp.col2im_1d(t(4, dtype=BF16), channels=1), (4, 1), 2, BF16),
}


@pytest.mark.parametrize("name", SHAPES)
def test_result_has_the_shape_and_type_of_the_formula(name: str) -> None:
    build, ne, rank, dtype = SHAPES[name]

    node = build()

    assert (node.ne, node.rank, node.dtype) == ((*ne, 1, 1, 1)[:4], rank, dtype)


REFUSED = [
    (
        lambda: tp.conv_2d(t(3, 3, 4, 5), t(9, 8, 3)),
        "conv_2d: kernel has 4 channels, ne[2], and x has 3; got kernel [5, 4, 3, 3], x [3, 8, 9]",
    ),
    (
        lambda: tp.conv_2d(t(3, 3), t(9, 4), dilation=(2, 1)),
        "conv_2d: a window of 5 does not fit into the 4 elements of dimension 1; "
        "got kernel [3, 3], x [4, 9]",
    ),
    (
        lambda: tp.conv_2d(t(0, 3), t(9, 4)),
        "conv_2d: a window of 0 does not fit into the 9 elements of dimension 0; "
        "got kernel [3, 0], x [4, 9]",
    ),
    (
        lambda: tp.conv_2d(t(3, 3), t(9, 4), stride=(1, 0)),
        "conv_2d: s0 = 0 and d0 = 1 must be positive, p0 = 0 not negative; "
        "got kernel [3, 3], x [4, 9]",
    ),
    (
        lambda: tp.conv_2d(t(3, 3), t(9, 4), padding=(-1, 0)),
        "conv_2d: s1 = 1 and d1 = 1 must be positive, p1 = -1 not negative; "
        "got kernel [3, 3], x [4, 9]",
    ),
    (
        lambda: tp.conv_2d_dw(t(3, 3, 2, 4), t(9, 4, 4)),
        "conv_2d_dw: kernel must have 1 in ne[2] and the 4 channels of x in ne[3]; "
        "got kernel [4, 2, 3, 3], x [4, 4, 9]",
    ),
    (
        lambda: tp.conv_2d_dw(t(3, 3, 1, 4), t(9, 4, 5)),
        "conv_2d_dw: kernel must have 1 in ne[2] and the 5 channels of x in ne[3]; "
        "got kernel [4, 1, 3, 3], x [5, 4, 9]",
    ),
    (
        lambda: tp.conv_3d(t(3, 3, 3, 4), t(9, 8, 7, 5), n_channels=2, n_channels_out=2),
        "conv_3d: ne[3] of x must be n_channels * n_batch = 2 * 1; "
        "got kernel [4, 3, 3, 3], x [5, 7, 8, 9]",
    ),
    (
        lambda: tp.conv_3d(t(3, 3, 3, 0), t(9, 8, 7, 2), n_channels=2, n_channels_out=0),
        "conv_3d: n_channels_out = 0 must be positive; got kernel [0, 3, 3, 3], x [2, 7, 8, 9]",
    ),
    (
        lambda: tp.conv_3d(t(3, 3, 3, 5), t(9, 8, 7, 2), n_channels=2, n_channels_out=2),
        "conv_3d: ne[3] of kernel must be n_channels * n_channels_out = 2 * 2; "
        "got kernel [5, 3, 3, 3], x [2, 7, 8, 9]",
    ),
    (
        lambda: tp.conv_3d(t(3, 3, 3, 4), t(9, 8, 2, 2), n_channels=2, n_channels_out=2),
        "conv_3d: a window of 3 does not fit into the 2 elements of dimension 2; "
        "got kernel [4, 3, 3, 3], x [2, 2, 8, 9]",
    ),
    (
        lambda: tp.conv_transpose_1d(t(3, 5, 4), t(6, 3)),
        "conv_transpose_1d: kernel has 4 channels, ne[2], and x has 3, ne[1]; "
        "got kernel [4, 5, 3], x [3, 6]",
    ),
    (
        lambda: tp.conv_transpose_1d(t(3, 5, 4), t(6, 4, 2)),
        "conv_transpose_1d: x must have at most two dimensions, kernel at most three; "
        "got kernel [4, 5, 3], x [2, 4, 6]",
    ),
    (
        lambda: tp.conv_transpose_1d(t(3, 5, 4), t(0, 4)),
        "conv_transpose_1d: x and kernel must not be empty; got kernel [4, 5, 3], x [4, 0]",
    ),
    (
        lambda: tp.conv_transpose_1d(t(3, 5, 4), t(6, 4), dilation=0),
        "conv_transpose_1d: s0 = 1 and d0 = 0 must be positive, p0 = 0 not negative; "
        "got kernel [4, 5, 3], x [4, 6]",
    ),
    (
        lambda: tp.conv_transpose_1d(t(3, 5, 4), t(6, 4), padding=4),
        "conv_transpose_1d: nothing is left after p0 = 4 elements are cropped from both ends; "
        "got kernel [4, 5, 3], x [4, 6]",
    ),
    (
        lambda: tp.conv_transpose_2d(t(3, 3, 5, 4), t(6, 6, 3)),
        "conv_transpose_2d: kernel has 4 channels, ne[3], and x has 3, ne[2]; "
        "got kernel [4, 5, 3, 3], x [3, 6, 6]",
    ),
    (
        lambda: tp.conv_transpose_2d(t(3, 3), t(6, 6), stride=0),
        "conv_transpose_2d: s0 = 0 and s1 = 0 must be positive; got kernel [3, 3], x [6, 6]",
    ),
    (
        lambda: tp.conv_transpose_2d(t(3, 0), t(6, 6)),
        "conv_transpose_2d: x and kernel must not be empty; got kernel [0, 3], x [6, 6]",
    ),
    (
        lambda: tp.im2col(t(3, 3, 4), t(9, 8, 3)),
        "im2col: kernel has 4 channels, ne[2], and x has 3; got kernel [4, 3, 3], x [3, 8, 9]",
    ),
    (
        lambda: tp.im2col(t(3, 4), t(9, 3), is_2d=False),
        "im2col: kernel has 4 channels, ne[1], and x has 3; got kernel [4, 3], x [3, 9]",
    ),
    (
        lambda: tp.im2col(t(3, 4), t(9, 4, 1, 2), is_2d=False),
        "im2col: x must have at most three dimensions: length, channels, batch; "
        "got kernel [4, 3], x [2, 1, 4, 9]",
    ),
    (
        lambda: tp.im2col(t(3, 3), t(9, 9), to="i32"),
        "im2col: windows cannot be written as i32; choose f32, f16 or bf16; got kernel [3, 3], x "
        "[9, 9]",
    ),
    (
        lambda: tp.im2col_3d(t(3, 3, 3, 4), t(9, 8, 7, 4), 3),
        "im2col_3d: n_channels = 3 does not divide ne[3] of kernel and x; "
        "got kernel [4, 3, 3, 3], x [4, 7, 8, 9]",
    ),
    (
        lambda: tp.im2col_3d(t(3, 3, 3, 4), t(9, 8, 7, 4), 4, to="q8_0"),
        "im2col_3d: windows cannot be written as q8_0; choose f32, f16 or bf16; "
        "got kernel [4, 3, 3, 3], x [4, 7, 8, 9]",
    ),
    (
        lambda: tp.im2col_back(t(24, 7, 7, 5), t(3, 2, 4, 5), (6, 4, 8, 9)),
        "im2col_back: grad must have ne (24, 7, 7, 6), as the windows of an image of ne "
        "(9, 8, 4, 6); got grad [5, 7, 7, 24], kernel [5, 4, 2, 3]",
    ),
    (
        lambda: tp.im2col_back(t(24, 7, 7, 6), t(3, 2, 4, 5), (6, 3, 8, 9)),
        "im2col_back: kernel has 4 channels, ne[2], and x has 3; "
        "got grad [6, 7, 7, 24], kernel [5, 4, 2, 3]",
    ),
    (
        lambda: tp.im2col_back(t(24, 7), t(3, 2, 4), (-8, 9)),
        "im2col_back: ne = (9, -8) must be one to four sizes; got grad [7, 24], kernel [4, 2, 3]",
    ),
    (
        lambda: tp.col2im_1d(t(12, 6), channels=5),
        "col2im_1d: x must be a matrix with rows of 5 times the kernel's length; got x [6, 12]",
    ),
    (
        lambda: tp.col2im_1d(t(12, 6, 2), channels=3),
        "col2im_1d: x must be a matrix with rows of 3 times the kernel's length; got x [2, 6, 12]",
    ),
    (
        lambda: tp.col2im_1d(t(12, 6), channels=3, stride=0),
        "col2im_1d: s0 = 0 and oc = 3 must be positive, p0 = 0 not negative; got x [6, 12]",
    ),
    (
        lambda: tp.col2im_1d(t(12, 1), channels=3, padding=2),
        "col2im_1d: nothing is left after p0 = 2 elements are cropped from both ends; got x [1, "
        "12]",
    ),
]


@pytest.mark.parametrize(("build", "message"), REFUSED)
def test_what_does_not_fit_is_refused_with_the_sizes(build, message: str) -> None:
    with pytest.raises(tp.ShapeError) as error:
        build()

    assert str(error.value) == message


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tp.conv_2d(t(3, 3), t(9, 9, dtype=F16)), r"conv_2d: x .* type f16; takes f32$"),
        (
            lambda: tp.conv_2d(t(32, 3, dtype=Q8_0), t(99, 9)),
            r"conv_2d: kernel .* type q8_0; takes bf16, f16, f32$",
        ),
        (
            lambda: tp.im2col(t(3, 3), t(9, 9, dtype=BF16)),
            r"im2col: x .* type bf16; takes f16, f32$",
        ),
        (
            lambda: tp.im2col_back(t(9, dtype=F16), t(3, 3), (3, 3)),
            r"im2col_back: grad .* type f16; takes f32$",
        ),
    ],
)
def test_types_without_a_meaning_are_refused(build, message: str) -> None:
    with pytest.raises(tp.DTypeError, match=message):
        build()
