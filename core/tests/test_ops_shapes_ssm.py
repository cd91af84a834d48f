"""What the builders of state space models give and refuse."""

import pytest

import tensorplug as tp
from tensorplug.tensor import Tensor

F32, F16, I32 = tp.F32, tp.F16, tp.I32


def t(*ne: int, dtype: tp.DType = F32) -> Tensor:
    """A tensor of sizes `ne` in ggml order."""
    return tp.input("x", ne[::-1], dtype)


# builder call, ne, rank
SHAPES = {
    "conv": (lambda: tp.ssm_conv(t(10, 6, 2), t(4, 6)), (6, 7, 2), 3),
    "conv of one sequence": (lambda: tp.ssm_conv(t(10, 6), t(4, 6)), (6, 7), 2),
    "conv of a vector": (lambda: tp.ssm_conv(t(4), t(4)), (1, 1), 2),
    "conv of nothing but the past": (lambda: tp.ssm_conv(t(3, 6), t(4, 6)), (6, 0), 2),
}


@pytest.mark.parametrize("name", SHAPES)
def test_result_has_the_shape_and_type_of_the_formula(name: str) -> None:
    build, ne, rank = SHAPES[name]

    node = build()

    assert (node.ne, node.rank, node.dtype) == ((*ne, 1, 1, 1)[:4], rank, F32)


REFUSED = [
    (
        lambda: tp.ssm_conv(t(10, 6, 2, 2), t(4, 6)),
        "ssm_conv: x must have at most 3 dimensions: time, channels, sequences; "
        "got x [2, 2, 6, 10], kernel [6, 4]",
    ),
    (
        lambda: tp.ssm_conv(t(10, 6), t(4, 6, 2)),
        "ssm_conv: kernel must be a matrix with a row of at least 1 for each channel; "
        "got x [6, 10], kernel [2, 6, 4]",
    ),
    (
        lambda: tp.ssm_conv(t(10, 6), t(0, 6)),
        "ssm_conv: kernel must be a matrix with a row of at least 1 for each channel; "
        "got x [6, 10], kernel [6, 0]",
    ),
    (
        lambda: tp.ssm_conv(t(10, 6), t(4, 5)),
        "ssm_conv: channels of x and kernel differ: 6 and 5; got x [6, 10], kernel [5, 4]",
    ),
    (
        lambda: tp.ssm_conv(t(2, 6), t(4, 6)),
        "ssm_conv: x has 2 steps, fewer than the 3 before the first result; "
        "got x [6, 2], kernel [6, 4]",
    ),
]


@pytest.mark.parametrize(("build", "message"), REFUSED)
def test_what_does_not_fit_is_refused_with_the_sizes(build, message: str) -> None:
    with pytest.raises(tp.ShapeError) as error:
        build()

    assert str(error.value) == message


def test_types_but_f32_are_refused() -> None:
    with pytest.raises(tp.DTypeError, match=r"ssm_conv: kernel .* has type f16; takes f32$"):
        tp.ssm_conv(t(10, 6), t(4, 6, dtype=F16))
