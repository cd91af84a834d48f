"""Gradients, as the derivatives of the forward formulas."""

# NumPy types most of what its functions return as Any.
# mypy: no-warn-return-any

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference.rope import angles, magnitude, pairs
from tensorplug_cpu.reference.softmax import weights
from tensorplug_cpu.reference.table import Params, values


@values("silu_back")
def silu_back(_: Params, grad: Array, x: Array) -> Array:
    s = 1 / (1 + np.exp(-x))
    return grad * (s + x * s * (1 - s))


@values("rms_norm_back")
def rms_norm_back(p: Params, grad: Array, x: Array) -> Array:
    n = x.shape[-1]
    mean = np.sum(x**2, axis=-1, keepdims=True) / n + p["eps"]
    # d/dx of x / sqrt(mean): the part of x itself, and the part of the mean.
    through_mean = -x * np.sum(grad * x, axis=-1, keepdims=True) / n * mean**-1.5
    return grad / np.sqrt(mean) + through_mean


@values("soft_max_back")
def soft_max_back(p: Params, grad: Array, y: Array) -> Array:
    return p["scale"] * y * (grad - np.sum(y * grad, axis=-1, keepdims=True))


@values("rope_back")
def rope_back(p: Params, x: Array, positions: Array, factors: Array | None) -> Array:
    first, second = pairs(p)
    angle = angles(p, positions.reshape(-1), x.shape[1], factors)[None, :, None, :]
    length = magnitude(p)
    cos, sin = length * np.cos(angle), length * np.sin(angle)
    y = x.copy()
    y[..., first] = x[..., first] * cos + x[..., second] * sin
    y[..., second] = x[..., second] * cos - x[..., first] * sin
    return y


@values("cross_entropy_loss")
def cross_entropy_loss(_: Params, logits: Array, labels: Array) -> Array:
    rows = logits.size // max(1, logits.shape[-1])
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    total = np.sum(np.exp(logits - top), axis=-1, keepdims=True)
    return -np.sum(labels * (logits - top - np.log(total))).reshape(1, 1, 1, 1) / rows


@values("cross_entropy_loss_back")
def cross_entropy_loss_back(_: Params, grad: Array, logits: Array, labels: Array) -> Array:
    rows = logits.size // max(1, logits.shape[-1])
    return grad.reshape(-1)[0] * (weights(logits, None) - labels) / rows


@values("flash_attn_back")
def flash_attn_back(p: Params, q: Array, k: Array, v: Array, grad: Array) -> Array:
    scale = q.shape[-1] ** -0.5
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for batch, head, i in np.ndindex(q.shape[:3] if k.size else (0, 0, 0)):
        seen = k.shape[2] - q.shape[2] + i + 1 if p["masked"] else k.shape[2]
        # Neighbouring heads of q share one of k and v, and so do neighbours in the batch.
        at = (batch * k.shape[0] // q.shape[0], head * k.shape[1] // q.shape[1])
        of = (batch, head, i)
        scores = scale * k[at][:seen] @ q[of]
        share = np.exp(scores - scores.max())
        share /= share.sum()
        dv[at][:, :seen] += np.outer(grad[of], share)
        back = grad[of] @ v[at][:, :seen]
        back = share * (back - share @ back)
        dq[of] = scale * back @ k[at][:seen]
        dk[at][:seen] += scale * np.outer(back, q[of])
    # ggml starts each of them at a multiple of 16 bytes, four elements.
    padded = [np.pad(part.ravel(), (0, -part.size % 4)) for part in (dq, dk, dv)]
    return np.concatenate(padded).reshape(1, 1, 1, -1)
