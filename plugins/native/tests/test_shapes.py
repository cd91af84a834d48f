"""Sizes at which kernels change their ways: parts of tiles and blocks; against NumPy."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.dtypes import Q5_0
from tensorplug_testing.running import run

from .streams import numbers


def causal(tokens, positions, window):
    """0 or -inf: each token sees `window` positions up to its own, counted from the end."""
    at = np.arange(positions - tokens, positions)[:, None]
    columns = np.arange(positions)
    hidden = (columns > at) | (columns <= at - window)
    return np.where(hidden, -np.inf, 0).astype(np.float32)


@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("kv", [tp.F32, tp.F16, tp.Q8_0], ids=str)
@pytest.mark.parametrize(
    ("tokens", "positions", "heads", "kv_heads", "size"),
    [
        (1, 70, 4, 1, 64),
        (1, 300, 5, 1, 128),
        (2, 301, 6, 2, 96),
        (4, 65, 2, 2, 32),
        (5, 64, 3, 1, 32),
        (13, 13, 9, 3, 64),
        (50, 129, 2, 1, 96),
        (101, 200, 4, 2, 288),
    ],
)
def test_attention_is_that_of_numpy(
    numpy, three, tokens, positions, heads, kv_heads, size, kv, softcap
):
    q, mask, sinks = (
        tp.input(name, shape, tp.F32)
        for name, shape in [
            ("q", (heads, tokens, size)),
            ("mask", (tokens, positions)),
            ("sinks", (heads,)),
        ]
    )
    k, v = (tp.input(name, (kv_heads, positions, size), tp.F32) for name in "kv")
    table = [tp.cast(t, kv) if kv is not tp.F32 else t for t in (k, v)]
    node = tp.flash_attn_ext(q, *table, mask, sinks, scale=0.1, softcap=softcap)
    values = {t: numbers(*t.shape, seed=i) for i, t in enumerate((q, k, v, sinks))}
    values[mask] = causal(tokens, positions, window=40)

    found = run(three, node, values)

    np.testing.assert_allclose(found, run(numpy, node, values), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kv", [tp.F32, tp.F16, tp.BF16], ids=str)
@pytest.mark.parametrize("heads", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [3, 20, 77])
def test_attention_of_one_token_with_heads_of_any_size(numpy, three, kv, heads, size):
    q = tp.input("q", (heads, 1, size), tp.F32)
    k, v = (tp.input(name, (1, 67, size), tp.F32) for name in "kv")
    table = [tp.cast(t, kv) if kv is not tp.F32 else t for t in (k, v)]
    values = {t: numbers(*t.shape, seed=i) for i, t in enumerate((q, k, v))}
    node = tp.flash_attn_ext(q, *table, scale=0.1)

    found = run(three, node, values)

    np.testing.assert_allclose(found, run(numpy, node, values), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("heads", [2, 3, 9])
def test_what_the_mask_hides_from_one_head_of_a_group_counts_for_the_others(three, heads):
    q, k, v = (
        tp.input(n, (h, s, 64), tp.F32) for n, h, s in (("q", heads, 1), ("k", 1, 9), ("v", 1, 9))
    )
    mask = tp.input("mask", (heads, 1, 9), tp.F32)
    values = {t: numbers(*t.shape, seed=i) for i, t in enumerate((q, k, v))}
    values[v][0, 4, 7] = np.nan
    values[mask] = np.zeros(mask.shape, np.float32)
    values[mask][1, 0, 4] = -np.inf

    found = run(three, tp.flash_attn_ext(q, k, v, mask, scale=0.1), values)

    spoilt = np.isnan(found.reshape(heads, 64))
    assert spoilt[:, 7].tolist() == [head != 1 for head in range(heads)]
    assert not np.delete(spoilt, 7, axis=1).any()


def test_a_token_that_sees_nothing_gives_zeros(three):
    q, k, v = (
        tp.input(n, (h, s, 64), tp.F32) for n, h, s in (("q", 2, 1), ("k", 1, 70), ("v", 1, 70))
    )
    mask = tp.input("mask", (1, 70), tp.F32)
    values = {t: numbers(*t.shape, seed=i) for i, t in enumerate((q, k, v))}
    values[mask] = np.full(mask.shape, -np.inf, np.float32)

    found = run(three, tp.flash_attn_ext(q, k, v, mask, scale=0.1), values)

    assert not found.any()


@pytest.mark.parametrize("dtype", [tp.F32, tp.F16, tp.BF16, Q5_0, tp.Q4_K], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 12, 13, 29, 43])
@pytest.mark.parametrize("outputs", [1, 7, 64, 99])
def test_product_of_uneven_tiles_is_that_of_numpy(numpy, three, dtype, rows, outputs):
    w, x = tp.input("w", (outputs, 768), tp.F32), tp.input("x", (rows, 768), tp.F32)
    node = tp.mul_mat(tp.cast(w, dtype) if dtype is not tp.F32 else w, x)
    values = {w: numbers(outputs, 768), x: numbers(rows, 768, seed=1)}

    found = run(three, node, values)

    np.testing.assert_allclose(found, run(numpy, node, values), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [tp.F32, tp.F16, tp.BF16], ids=str)
@pytest.mark.parametrize("row", [1, 15, 33, 257])
def test_rows_without_multiples_of_a_vector(numpy, three, dtype, row):
    x, w = tp.input("x", (7, row), tp.F32), tp.input("w", (5, row), tp.F32)
    narrow = tp.cast(w, dtype) if dtype is not tp.F32 else w
    node = tp.soft_max(tp.mul_mat(narrow, tp.rms_norm(tp.geglu(x, x) * x)))
    values = {x: numbers(7, row), w: numbers(5, row, seed=1)}

    found = run(three, node, values)

    np.testing.assert_allclose(found, run(numpy, node, values), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [tp.F32, tp.F16, tp.BF16], ids=str)
@pytest.mark.parametrize("rows", [3, 19, 43])
@pytest.mark.parametrize("length", [1, 15, 33, 2051])
def test_products_of_lengths_that_fill_no_vector(numpy, three, dtype, rows, length):
    w, x = tp.input("w", (21, length), tp.F32), tp.input("x", (rows, length), tp.F32)
    node = tp.mul_mat(tp.cast(w, dtype) if dtype is not tp.F32 else w, x)
    values = {w: numbers(21, length), x: numbers(rows, length, seed=1)}

    found = run(three, node, values)

    np.testing.assert_allclose(found, run(numpy, node, values), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kv", [tp.F32, tp.F16], ids=str)
@pytest.mark.parametrize(("tokens", "heads", "kv_heads"), [(1, 4, 2), (3, 3, 1), (4, 2, 2)])
def test_attention_to_blocks_far_apart_is_that_of_numpy(numpy, three, tokens, heads, kv_heads, kv):
    size, positions = 32, 1000
    mask = np.full((tokens, positions), -np.inf, np.float32)
    for token in range(tokens):  # a token of each text sees other blocks, the last one in part
        for block in (0, 5 + token, 9, 15):
            mask[token, 64 * block : 64 * block + 64 - 11 * (block == 15) * token] = 0
    q = tp.input("q", (heads, tokens, size), tp.F32)
    k, v = (tp.input(name, (kv_heads, positions, size), tp.F32) for name in "kv")
    seen = tp.input("mask", mask.shape, tp.F32)
    table = [tp.cast(t, kv) if kv is not tp.F32 else t for t in (k, v)]
    node = tp.flash_attn_ext(q, *table, seen, scale=0.1)
    values = {t: numbers(*t.shape, seed=i) for i, t in enumerate((q, k, v))}
    values[seen] = mask

    found = run(three, node, values)

    np.testing.assert_allclose(found, run(numpy, node, values), rtol=1e-4, atol=1e-5)
