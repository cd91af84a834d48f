"""What the builders of pooling give and refuse."""

import pytest

import tensorplug as tp
from tensorplug.graph.tensor import Tensor

F32, F16, BF16 = tp.F32, tp.F16, tp.BF16


def t(*ne: int, dtype: tp.DType = F32) -> Tensor:
    """A tensor of sizes `ne` in ggml order."""
    return tp.input("x", ne[::-1], dtype)


# builder call, ne, rank
SHAPES = {
    "pool_1d": (lambda: tp.pool_1d(t(10, 3, 2), size=3), (8, 3, 2), 3),
    "pool_1d of f16": (lambda: tp.pool_1d(t(10, dtype=F16), kind="avg", size=2, stride=2), (5,), 1),
    "pool_1d with padding": (lambda: tp.pool_1d(t(10, 3), size=4, stride=3, padding=2), (4, 3), 2),
    "pool_2d": (lambda: tp.pool_2d(t(10, 9, 3, 2), size=(2, 3), stride=(1, 2)), (4, 8, 3, 2), 4),
    "pool_2d of a row": (lambda: tp.pool_2d(t(10), size=(1, 3)), (8, 1), 2),
    "pool_2d with half an element": (
        lambda: tp.pool_2d(t(10, 9, dtype=F16), size=(2, 3), padding=(1, 0.5)),
        (9, 10),
        2,
    ),
    "pool_2d with a quarter": (
        lambda: tp.pool_2d(t(10, 9), size=(2, 3), padding=(0, 0.25)),
        (8, 8),
        2,
    ),
    "pool_2d_back": (
        lambda: tp.pool_2d_back(
            t(4, 8, 3, 2), t(10, 9, 3, 2, dtype=F16), size=(2, 3), stride=(1, 2)
        ),
        (10, 9, 3, 2),
        4,
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_result_has_the_shape_of_the_formula_and_is_f32(name: str) -> None:
    build, ne, rank = SHAPES[name]

    node = build()

    assert (node.ne, node.rank, node.dtype) == ((*ne, 1, 1, 1)[:4], rank, F32)


REFUSED = [
    (
        lambda: tp.pool_1d(t(10), kind="min", size=2),
        "pool_1d: unknown kind 'min'; kinds are max, avg; got x [10]",
    ),
    (
        lambda: tp.pool_1d(t(10), size=0),
        "pool_1d: k0 = 0 and s0 = 1 must be positive, p0 = 0 not negative; got x [10]",
    ),
    (
        lambda: tp.pool_1d(t(2), size=5, stride=3, padding=1),
        "pool_1d: a window of 5 does not fit into the 4 elements of dimension 0; got x [2]",
    ),
    (
        lambda: tp.pool_2d(t(10, 9), size=2, stride=(0, 1)),
        "pool_2d: k1 = 2 and s1 = 0 must be positive, p1 = 0 not negative; got x [9, 10]",
    ),
    (
        lambda: tp.pool_2d(t(10, 9), size=2, padding=(0, -0.5)),
        "pool_2d: k0 = 2 and s0 = 1 must be positive, p0 = -0.5 not negative; got x [9, 10]",
    ),
    (
        lambda: tp.pool_2d(t(10, 9), size=2, padding=(0, float("nan"))),
        "pool_2d: k0 = 2 and s0 = 1 must be positive, p0 = nan not negative; got x [9, 10]",
    ),
    (
        lambda: tp.pool_2d(t(10, 9), size=2, padding=(0, float("inf"))),
        "pool_2d: p0 = inf is not finite; got x [9, 10]",
    ),
    (
        lambda: tp.pool_2d(t(10, 2), size=(4, 2), padding=(0.9, 0)),
        "pool_2d: a window of 4 does not fit into the 3 elements of dimension 1; got x [2, 10]",
    ),
    (
        lambda: tp.pool_2d_back(t(9, 9), t(10, 9), size=2),
        "pool_2d_back: grad must have ne (9, 8, 1, 1), as the windows of x; "
        "got grad [9, 9], x [9, 10]",
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
        (lambda: tp.pool_1d(t(9, dtype=BF16), size=1), r"pool_1d: x .* type bf16; takes f16, f32$"),
        (
            lambda: tp.pool_2d_back(t(9, 1, dtype=F16), t(9), size=1),
            r"pool_2d_back: grad .* type f16; takes f32$",
        ),
    ],
)
def test_types_without_a_meaning_are_refused(build, message: str) -> None:
    with pytest.raises(tp.DTypeError, match=message):
        build()
