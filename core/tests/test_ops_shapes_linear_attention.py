"""What the builders of linear attention give and refuse."""

import pytest

import tensorplug as tp
from tensorplug.graph.tensor import Tensor


def t(*ne: int, dtype: tp.DType = tp.F32) -> Tensor:
    """A tensor of sizes `ne` in ggml order."""
    return tp.input("x", ne[::-1], dtype)


SOURCES = {
    "rwkv_wkv6": ("k", "v", "r", "tf", "td", "state"),
    "rwkv_wkv7": ("r", "w", "k", "v", "a", "b", "state"),
    "gated_linear_attn": ("k", "v", "q", "g", "state"),
}


def attend(op: str, **other: Tensor) -> Tensor:
    """6 tokens of 2 sequences, 3 heads of size 4."""
    special = {"tf": t(4, 3), "state": t(48, 2)}
    sources = {name: special.get(name, t(4, 3, 6)) for name in SOURCES[op]}
    return getattr(tp, op)(**(sources | other))


def correct(K: int = 1, **other: Tensor) -> Tensor:  # noqa: N803 - the name in ggml
    """A delta net on 5 tokens of 2 sequences, 6 heads of size 4 that share 3 of q and k."""
    sources = {
        "q": t(4, 3, 5, 2),
        "k": t(4, 3, 5, 2),
        "v": t(4, 6, 5, 2),
        "g": t(1, 6, 5, 2),
        "beta": t(1, 6, 5, 2),
        "state": t(4, 4, 6, 2),
    }
    return tp.gated_delta_net(**(sources | other), K=K)


X, STATE = t(4, 3, 6), t(48, 2)


@pytest.mark.parametrize(
    "node",
    [
        tp.rwkv_wkv6(X, X, X, t(4, 3), X, STATE),
        tp.rwkv_wkv7(X, X, X, X, X, X, STATE),
        tp.gated_linear_attn(X, X, X, X, STATE, scale=2),
    ],
    ids=lambda node: node.op,
)
def test_result_has_a_row_for_each_token_and_each_row_of_the_states(node: Tensor) -> None:
    assert (node.ne, node.rank, node.dtype) == ((12, 6 + 4 * 2, 1, 1), 2, tp.F32)


@pytest.mark.parametrize(
    ("node", "rows"),
    [
        (correct(), 5 * 2 + 4 * 2),
        (correct(K=3), 5 * 2 + 3 * 4 * 2),
        (correct(g=t(4, 6, 5, 2)), 18),
        (correct(q=t(4, 1, 5), k=t(4, 6, 5, 2)), 18),
    ],
)
def test_delta_net_has_a_row_for_each_token_and_each_row_of_the_states(node, rows: int) -> None:
    assert (node.ne, node.rank, node.dtype) == ((24, rows, 1, 1), 2, tp.F32)


@pytest.mark.parametrize(
    ("op", "other", "problem"),
    [
        ("rwkv_wkv6", {"k": t(4, 3, 6, 2)}, "k must be [size, heads, tokens of all sequences]"),
        ("rwkv_wkv6", {"td": t(4, 3, 5)}, "td must be [4, 3, 6] like k"),
        ("rwkv_wkv6", {"tf": t(4, 2)}, "tf must be [4, 3]: size, heads"),
        ("rwkv_wkv7", {"b": t(4, 3)}, "b must be [4, 3, 6] like r"),
        (
            "gated_linear_attn",
            {"state": t(4, 4, 3, 2)},
            "state must be [48 = size * size * heads, sequences]",
        ),
        ("gated_linear_attn", {"state": t(48, 4)}, "4 sequences cannot share 6 tokens evenly"),
        ("gated_linear_attn", {"state": t(48, 0)}, "0 sequences cannot share 6 tokens evenly"),
    ],
)
def test_attention_of_what_does_not_fit_is_refused_with_the_sizes(op, other, problem) -> None:
    with pytest.raises(tp.ShapeError) as error:
        attend(op, **other)

    assert str(error.value).startswith(f"{op}: {problem}; got ")


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ({"q": t(3, 3, 5, 2)}, "q must be [4, heads, 5, sequences] like v"),
        ({"k": t(4, 3, 6, 2)}, "k must be [4, heads, 5, sequences] like v"),
        ({"q": t(4, 4, 5, 2)}, "the heads or sequences of v are not a multiple of those of q"),
        ({"k": t(4, 3, 5, 3)}, "the heads or sequences of v are not a multiple of those of k"),
        ({"g": t(2, 6, 5, 2)}, "g must have the shape of v, or one element for each head"),
        (
            {"beta": t(4, 6, 5, 2)},
            "beta must have one element for each head, token and sequence of v",
        ),
        ({"state": t(4, 4, 6)}, "state must be [4, 4, 6, 2]"),
        ({"K": 0}, "K = 0 states to keep; K must be at least 1"),
    ],
)
def test_delta_net_of_what_does_not_fit_is_refused_with_the_sizes(other, problem) -> None:
    with pytest.raises(tp.ShapeError) as error:
        correct(**other)

    assert str(error.value).startswith(f"gated_delta_net: {problem}; got q ")


def test_types_but_f32_are_refused() -> None:
    with pytest.raises(tp.DTypeError, match=r"gated_delta_net: k .* has type f16; takes f32$"):
        correct(k=t(4, 3, 5, 2, dtype=tp.F16))
