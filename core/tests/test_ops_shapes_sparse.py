"""What the builders of position scores and of residual streams give and refuse."""

import pytest

import tensorplug as tp
from tensorplug.graph.tensor import Tensor

F32, F16 = tp.F32, tp.F16


def t(*ne: int, dtype: tp.DType = F32) -> Tensor:
    """A tensor of sizes `ne` in ggml order."""
    return tp.input("x", ne[::-1], dtype)


def index(**other: Tensor) -> Tensor:
    """Scores of 9 positions for 5 tokens, 4 heads of size 32, a batch of 6."""
    sources = {
        "q": t(32, 4, 5, 6),
        "k": t(32, 1, 9, 6, dtype=tp.Q8_0),
        "weights": t(4, 5, 1, 6),
        "mask": t(9, 5, 1, 3, dtype=F16),
    }
    return tp.lightning_indexer(**(sources | other))


def comb(mixes: Tensor, scale: Tensor, base: Tensor, n_iter: int = 2) -> Tensor:
    return tp.dsv4_hc_comb(mixes, scale, base, eps=1e-6, n_iter=n_iter)


def post(**other: Tensor | None) -> Tensor:
    """7 tokens of size 16 added to 4 streams."""
    sources = {"x": t(16, 7), "residual": t(16, 4, 7), "post": t(4, 7), "comb": t(4, 4, 7)}
    return tp.dsv4_hc_post(**(sources | other))


# builder call, ne, rank
SHAPES = {
    "scores": (index, (9, 5, 1, 6), 4),
    "scores of one": (
        lambda: tp.lightning_indexer(t(32, 4, 5), t(32, 1, 9), t(4, 5), t(9, 5)),
        (9, 5, 1, 1),
        2,
    ),
    "scores under one mask": (lambda: index(mask=t(9, 5)), (9, 5, 1, 6), 4),
    "matrices of 4 streams": (lambda: comb(t(24, 7), t(3), t(24)), (4, 4, 7, 1), 3),
    "matrices of 2 streams": (lambda: comb(t(8, 7), t(5), t(8)), (2, 2, 7, 1), 3),
    "streams joined": (lambda: tp.dsv4_hc_pre(t(16, 4, 7), t(4, 7)), (16, 7, 1, 1), 2),
    "streams joined by gates": (
        lambda: tp.dsv4_hc_pre(t(16, 4, 7), t(16, 4, 7), gated=True, scale=2),
        (16, 7, 1, 1),
        2,
    ),
    "streams mixed": (post, (16, 4, 7, 1), 3),
    "streams apart": (lambda: post(comb=None), (16, 4, 7, 1), 3),
}


@pytest.mark.parametrize("name", SHAPES)
def test_result_has_the_shape_and_type_of_the_formula(name: str) -> None:
    build, ne, rank = SHAPES[name]

    node = build()

    assert (node.ne, node.rank, node.dtype) == (ne, rank, F32)


REFUSED = [
    (
        lambda: index(k=t(32, 4, 9, 6)),
        "lightning_indexer: k must be [32, 1, positions, 6]: all heads of q share one head",
    ),
    (
        lambda: index(weights=t(4, 5, 6)),
        "lightning_indexer: weights must be [4, 5, 1, 6]: heads, tokens of q",
    ),
    (
        lambda: index(mask=t(9, 6)),
        "lightning_indexer: mask must be [9, 5, 1, batch]: positions, tokens",
    ),
    (
        lambda: index(mask=t(9, 5, 1, 4)),
        "lightning_indexer: mask has a batch of 4, which does not divide 6",
    ),
    (
        lambda: comb(t(25, 7), t(3), t(25)),
        "dsv4_hc_comb: mixes must be [(2 + n) * n, tokens] for n streams",
    ),
    (
        lambda: comb(t(0, 7), t(3), t(0)),
        "dsv4_hc_comb: mixes must be [(2 + n) * n, tokens] for n streams",
    ),
    (
        lambda: comb(t(24, 7, 2), t(3), t(24)),
        "dsv4_hc_comb: mixes must be [(2 + n) * n, tokens] for n streams",
    ),
    (lambda: comb(t(24, 7), t(2), t(24)), "dsv4_hc_comb: scale must be a vector of at least 3"),
    (lambda: comb(t(24, 7), t(3), t(23)), "dsv4_hc_comb: base must be a vector of 24"),
    (
        lambda: comb(t(24, 7), t(3), t(24), 0),
        "dsv4_hc_comb: n_iter = 0; n_iter must be at least 1",
    ),
    (
        lambda: tp.dsv4_hc_pre(t(16, 4, 7, 2), t(4, 7)),
        "dsv4_hc_pre: x must be [size, streams, tokens]",
    ),
    (
        lambda: tp.dsv4_hc_pre(t(16, 0, 7), t(0, 7)),
        "dsv4_hc_pre: x has no streams; it must have at least one",
    ),
    (
        lambda: tp.dsv4_hc_pre(t(16, 4, 7), t(3, 7)),
        "dsv4_hc_pre: weights must be [4, 7]: streams, tokens",
    ),
    (
        lambda: tp.dsv4_hc_pre(t(16, 4, 7), t(4, 7), gated=True),
        "dsv4_hc_pre: weights that are gates must have the shape of x",
    ),
    (
        lambda: post(residual=t(16, 4, 7, 2)),
        "dsv4_hc_post: residual must be [size, streams, tokens]",
    ),
    (lambda: post(x=t(16, 8)), "dsv4_hc_post: x must be [16, 7]: size, tokens of residual"),
    (lambda: post(post=t(3, 7)), "dsv4_hc_post: post must be [4, 7]: streams, tokens of residual"),
    (
        lambda: post(comb=t(3, 4, 7)),
        "dsv4_hc_post: comb must be [4, 4, 7]: streams twice, tokens",
    ),
]


@pytest.mark.parametrize(("build", "message"), REFUSED)
def test_what_does_not_fit_is_refused_with_the_sizes(build, message: str) -> None:
    with pytest.raises(tp.ShapeError) as error:
        build()

    assert str(error.value).startswith(f"{message}; got ")


def test_mask_of_another_type_is_refused() -> None:
    with pytest.raises(tp.DTypeError, match=r"lightning_indexer: mask .* takes f16, f32$"):
        index(mask=t(9, 5, 1, 3, dtype=tp.BF16))
