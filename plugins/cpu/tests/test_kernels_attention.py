"""Attention: chunks of positions and tokens, heads in groups, rows that see nothing."""

import math

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.graph.tensor import leaf
from tensorplug_cpu.kernels import attention
from tensorplug_testing.running import run

RNG = np.random.default_rng(9)
TOKENS, HEADS, KV_HEADS, POSITIONS, SIZE = 6, 4, 2, 50, 16


def attended(**options):
    """A use of attention, its values, and what it gives in f64."""
    q = tp.input("q", (TOKENS, HEADS, SIZE), tp.F32)
    k = tp.input("k", (POSITIONS, KV_HEADS, SIZE), tp.F32)
    v = tp.input("v", (POSITIONS, KV_HEADS, 8), tp.F32)
    mask, sinks = tp.input("mask", (TOKENS, POSITIONS), tp.F32), tp.input("s", (HEADS,), tp.F32)
    values = {t: RNG.normal(size=t.shape).astype(np.float32) for t in (q, k, v, mask, sinks)}
    values[mask][RNG.random(values[mask].shape) < 0.3] = -np.inf
    values[mask][2] = -np.inf
    by_head = [tp.permute(t, (1, 0, 2)) for t in (q, k, v)]
    extra = sinks if options.pop("sinks", False) else None
    node = tp.flash_attn_ext(*by_head, mask, extra, scale=0.3, **options)
    if extra is None:
        del values[sinks]
    return node, values, plain(values, q, k, v, mask, extra, **options)


def plain(values, q, k, v, mask, sinks, *, softcap=0.0, max_bias=0.0):
    q, k, v, mask = (values[t].astype(np.float64) for t in (q, k, v, mask))
    out = np.zeros((TOKENS, HEADS, v.shape[2]))
    for t in range(TOKENS):
        for h in range(HEADS):
            scores = 0.3 * k[:, h // 2] @ q[t, h]
            scores = softcap * np.tanh(scores / softcap) if softcap else scores
            slope = 2.0 ** (-max_bias * (h + 1) / HEADS) if max_bias else 1.0
            scores = scores + slope * mask[t]
            sink = -np.inf if sinks is None else values[sinks][h]
            top = max(scores.max(), sink, -1e30)
            weights, rest = np.exp(scores - top), math.exp(sink - top)
            out[t, h] = weights @ v[:, h // 2] / (weights.sum() + rest or 1.0)
    return out


OPTIONS = [{}, {"softcap": 5.0}, {"max_bias": 4.0}, {"softcap": 5.0, "max_bias": 4.0}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("scores", "decoded"), [(1 << 20, 1 << 21), (100, 1 << 21), (1 << 20, 96)])
def test_attention_does_not_depend_on_how_it_is_cut(backend, monkeypatch, options, scores, decoded):
    monkeypatch.setattr(attention, "SCORES", scores)
    monkeypatch.setattr(attention, "DECODED", decoded)
    node, values, wanted = attended(**options)

    found = run(backend, node, values)

    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scores", [1 << 20, 100])
def test_sinks_take_their_share_once_however_attention_is_cut(backend, monkeypatch, scores):
    monkeypatch.setattr(attention, "SCORES", scores)
    node, values, wanted = attended(sinks=True)

    found = run(backend, node, values).reshape(wanted.shape)

    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_token_that_sees_nothing_gets_zeros_from_attention(backend):
    node, values, wanted = attended()

    found = run(backend, node, values).reshape(wanted.shape)

    assert not found[2].any()


def test_row_that_sees_nothing_has_no_softmax_unless_it_has_a_sink(backend):
    x, sinks = tp.input("x", (1, 2, 3), tp.F32), tp.input("sinks", (1,), tp.F32)
    data = np.array([[[-np.inf] * 3, [0.0] * 3]], np.float32)

    bare = run(backend, tp.soft_max(x), {x: data})
    sunk = run(backend, tp.soft_max(x, None, sinks), {x: data, sinks: np.zeros(1, np.float32)})

    assert np.isnan(bare[0, 0]).all()
    np.testing.assert_allclose(bare[0, 1], 1 / 3, rtol=1e-6)
    np.testing.assert_allclose(sunk[0], [[0] * 3, [0.25] * 3], rtol=1e-6)


@pytest.mark.parametrize("dtype", [tp.F16, tp.BF16, tp.Q8_0], ids=str)
def test_keys_and_values_of_other_types_are_decoded_in_chunks(backend, monkeypatch, dtype):
    monkeypatch.setattr(attention, "DECODED", 64 * 32)
    q = tp.input("q", (2, 3, 32), tp.F32)
    k, v = (leaf(n, (2, 200, 32), dtype) for n in "kv")
    stored = [
        RNG.integers(0, 60, (2, 200, dtype.row_size(32)), dtype=np.uint8).view(dtype.storage)
        for _ in "kv"
    ]
    data = RNG.normal(size=(2, 3, 32)).astype(np.float32)
    values = {q: data, k: stored[0], v: stored[1]}
    monkeypatch.setattr(attention, "SCORES", 1 << 20)

    found = run(backend, tp.flash_attn_ext(q, k, v, scale=0.2), values)

    wide = [run(backend, tp.cast(t, tp.F32), {t: values[t]}) for t in (k, v)]
    full = [tp.input(n, (2, 200, 32), tp.F32) for n in "kv"]
    node = tp.flash_attn_ext(q, *full, scale=0.2)
    wanted = run(backend, node, {q: data, full[0]: wide[0], full[1]: wide[1]})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
