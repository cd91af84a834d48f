"""What the builders of state space models give and refuse."""

import pytest

import tensorplug as tp
from tensorplug.graph.tensor import Tensor

F32, F16, I32 = tp.F32, tp.F16, tp.I32


def t(*ne: int, dtype: tp.DType = F32) -> Tensor:
    """A tensor of sizes `ne` in ggml order."""
    return tp.input("x", ne[::-1], dtype)


def scan(K: int = 1, **other: Tensor) -> Tensor:  # noqa: N803 - the name in ggml
    """A scan of 7 tokens of 2 sequences with 5 states [16, 8, 4] to start from."""
    sources = {
        "s": t(16, 8, 4, 5),
        "x": t(8, 4, 7, 2),
        "dt": t(4, 7, 2),
        "a": t(1, 4),
        "b": t(16, 2, 7, 2),
        "c": t(16, 2, 7, 2),
        "ids": t(2, dtype=I32),
    }
    return tp.ssm_scan(**(sources | other), K=K)


# builder call, ne, rank
SHAPES = {
    "conv": (lambda: tp.ssm_conv(t(10, 6, 2), t(4, 6)), (6, 7, 2), 3),
    "conv of one sequence": (lambda: tp.ssm_conv(t(10, 6), t(4, 6)), (6, 7), 2),
    "conv of a vector": (lambda: tp.ssm_conv(t(4), t(4)), (1, 1), 2),
    "conv of nothing but the past": (lambda: tp.ssm_conv(t(3, 6), t(4, 6)), (6, 0), 2),
    "scan": (scan, (8 * 4 * 7 * 2 + 16 * 8 * 4 * 2,), 1),
    "scan that keeps states": (lambda: scan(K=3), (8 * 4 * 7 * 2 + 3 * 16 * 8 * 4 * 2,), 1),
    "scan with a decay for each element": (lambda: scan(a=t(16, 4)), (448 + 1024,), 1),
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
_SCAN = {
    "s": "[5, 4, 8, 16]",
    "x": "[2, 7, 4, 8]",
    "dt": "[2, 7, 4]",
    "a": "[4, 1]",
    "b": "[2, 7, 2, 16]",
    "c": "[2, 7, 2, 16]",
    "ids": "[2]",
}
REFUSED_SCANS = [
    (
        {"x": t(9, 4, 7, 2)},
        "x must be [8, 4, tokens, sequences], as s is [n, dim, heads]",
        {"x": "[2, 7, 4, 9]"},
    ),
    (
        {"dt": t(4, 6, 2)},
        "dt must be [4, 7, 2]: heads, tokens, sequences",
        {"dt": "[2, 6, 4]"},
    ),
    ({"a": t(2, 4)}, "a must be [1, 4] or [16, 4]: one or n for each head", {"a": "[4, 2]"}),
    (
        {"b": t(16, 3, 7, 2)},
        "b must be [16, groups, 7, 2] with groups that divide the 4 heads",
        {"b": "[2, 7, 3, 16]"},
    ),
    (
        {"c": t(15, 2, 7, 2)},
        "c must be [16, groups, 7, 2] with groups that divide the 4 heads",
        {"c": "[2, 7, 2, 15]"},
    ),
    ({"c": t(16, 4, 7, 2)}, "b and c have 2 and 4 groups", {"c": "[2, 7, 4, 16]"}),
    (
        {"ids": t(3, dtype=I32)},
        "ids must be a vector of 2, one for each sequence",
        {"ids": "[3]"},
    ),
    ({"K": 0}, "K = 0 states to keep; K must be at least 1", {}),
]


@pytest.mark.parametrize(("other", "problem", "shown"), REFUSED_SCANS)
def test_scan_of_what_does_not_fit_is_refused_with_the_sizes(other, problem, shown) -> None:
    with pytest.raises(tp.ShapeError) as error:
        scan(**other)

    got = ", ".join(f"{name} {shape}" for name, shape in (_SCAN | shown).items())
    assert str(error.value) == f"ssm_scan: {problem}; got {got}"


@pytest.mark.parametrize(("build", "message"), REFUSED)
def test_what_does_not_fit_is_refused_with_the_sizes(build, message: str) -> None:
    with pytest.raises(tp.ShapeError) as error:
        build()

    assert str(error.value) == message


def test_types_but_f32_are_refused() -> None:
    with pytest.raises(tp.DTypeError, match=r"ssm_conv: kernel .* has type f16; takes f32$"):
        tp.ssm_conv(t(10, 6), t(4, 6, dtype=F16))
