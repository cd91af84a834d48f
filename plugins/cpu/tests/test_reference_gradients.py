"""The reference of every gradient op, compared with finite differences of the op it belongs to."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.graph.tensor import leaf
from tensorplug_cpu.reference import compute

STEP = 2.0**-10
"""Inputs are multiples of it, so that f32 holds them and their neighbours exactly."""
MROPE = {"dims": 8, "mode": "mrope", "sections": (1, 1, 1, 1), "attn_factor": 1.5}
YARN = {"dims": 6, "mode": "neox", "ext_factor": 0.7, "original_context": 64, "scale": 0.25}


def f32(*shape):
    return leaf("", shape, tp.F32)


def drawn(shape, seed):
    return np.random.default_rng(seed).integers(-1500, 1500, shape) * STEP


def value(node, data):
    return compute(node, data)[node]


def differences(node, grad, data, x):
    """The derivative of `sum(grad * node)` by each element of `x`, by four points around it."""
    found = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        for steps, weight in ((1, 8), (-1, -8), (2, -1), (-2, 1)):
            moved = data[x].copy()
            moved[at] += steps * STEP
            found[at] += weight * np.sum(grad * value(node, {**data, x: moved}))
    return found / (12 * STEP)


def shares(shape):
    powers = np.exp(drawn(shape, 9))
    return powers / powers.sum(-1, keepdims=True)


def soft_max_back(grad, x):
    return tp.soft_max_back(grad, tp.soft_max(x, scale=0.7), scale=0.7)


X, POSITIONS, FACTORS = f32(3, 2, 8), leaf("", (3,), tp.I32), f32(4)
FOUR_POSITIONS = leaf("", (12,), tp.I32)
LABELS = f32(3, 2, 8)
FIXED = {
    POSITIONS: np.array([0, 3, 40], np.int32),
    FOUR_POSITIONS: np.arange(12, dtype=np.int32),
    FACTORS: np.array([1.0, 1.5, 2.0, 0.5]),
    LABELS: shares((3, 2, 8)),
}
PAIRS = {
    "silu": (tp.silu, tp.silu_back),
    "rms_norm": (
        lambda x: tp.rms_norm(x, eps=0.25),
        lambda grad, x: tp.rms_norm_back(grad, x, eps=0.25),
    ),
    "soft_max": (lambda x: tp.soft_max(x, scale=0.7), soft_max_back),
    "rope": (
        lambda x: tp.rope(x, POSITIONS, dims=8),
        lambda grad, _: tp.rope_back(grad, POSITIONS, dims=8),
    ),
    "rope of halves, by YaRN": (
        lambda x: tp.rope(x, POSITIONS, FACTORS, **YARN),
        lambda grad, _: tp.rope_back(grad, POSITIONS, FACTORS, **YARN),
    ),
    "rope of four positions": (
        lambda x: tp.rope(x, FOUR_POSITIONS, **MROPE),
        lambda grad, _: tp.rope_back(grad, FOUR_POSITIONS, **MROPE),
    ),
    "cross_entropy_loss": (
        lambda x: tp.cross_entropy_loss(x, LABELS),
        lambda grad, x: tp.cross_entropy_loss_back(grad, x, LABELS),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_gradient_is_what_differences_say(name):
    forward, backward = PAIRS[name]
    y = forward(X)
    grad = f32(*y.shape)
    data = {**FIXED, X: drawn(X.shape, 1), grad: drawn(y.shape, 2)}

    found = value(backward(grad, X), data)

    np.testing.assert_allclose(found, differences(y, data[grad], data, X), rtol=1e-7, atol=1e-8)


# heads of q, of k and v, tokens, positions
ATTENTION = [
    *[((2, 2), 2, 3, masked) for masked in (False, True)],
    *[((4, 2), 3, 5, masked) for masked in (False, True)],
    ((3, 1), 4, 2, False),
]


@pytest.mark.parametrize(("heads", "tokens", "positions", "masked"), ATTENTION)
def test_gradients_of_attention_are_what_differences_say(heads, tokens, positions, masked):
    size, wide = 4, 3
    q, k = f32(heads[0], tokens, size), f32(heads[1], positions, size)
    v, grad = f32(heads[1], wide, positions), f32(heads[0], tokens, wide)
    mask = f32(tokens, positions)
    hidden = np.triu(np.ones((tokens, positions), bool), positions - tokens + 1) & masked
    data = {t: drawn(t.shape, seed) for seed, t in enumerate((q, k, v, grad))}
    data[mask] = np.where(hidden, -np.inf, 0.0)
    y = tp.permute(tp.flash_attn_ext(q, k, v.mT, mask, scale=size**-0.5), (1, 0, 2))

    packed = value(tp.flash_attn_back(q, k, v, grad, masked=masked), data)

    starts = np.cumsum([0, *(-(-t.size // 4) * 4 for t in (q, k, v))])
    for x, start in zip((q, k, v), starts[:3], strict=True):
        wanted = differences(y, data[grad], data, x)
        found = packed[start : start + x.size].reshape(x.shape)
        np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-8)
    assert packed.size == starts[3]
