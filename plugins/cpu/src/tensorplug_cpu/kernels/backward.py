"""Gradients. Those of one shape with their sources may lie over the first of them."""

from collections.abc import Sequence

import numpy as np

from tensorplug.device import Array
from tensorplug.ops.backward import UNIT
from tensorplug_cpu.kernels.rope import turned
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step
from tensorplug_cpu.whole import Params, whole

_F32 = np.float32


@whole("silu_back")
def silu_back(_: Params, grad: Array, x: Array) -> Array:
    """`grad * s * (1 + x * (1 - s))`."""
    s = _F32(1) / (_F32(1) + np.exp(-x))
    product: Array = grad * s * (_F32(1) + x * (_F32(1) - s))
    return product


@whole("rms_norm_back")
def rms_norm_back(p: Params, grad: Array, x: Array) -> Array:
    """What comes back directly, less what comes back through the mean square."""
    row = _F32(x.shape[-1])
    squares = np.einsum("...i,...i->...", x, x)[..., None]
    along = np.einsum("...i,...i->...", x, grad)[..., None]
    mean = squares / row + _F32(p["eps"])
    result: Array = (grad - x * (along / (row * mean))) / np.sqrt(mean)
    return result


@whole("soft_max_back")
def soft_max_back(p: Params, grad: Array, y: Array) -> Array:
    """`scale * y * (grad - y . grad)`."""
    along = np.einsum("...i,...i->...", y, grad)[..., None]
    result: Array = y * (grad - along) * _F32(p["scale"])
    return result


@kernel("rope_back")
def rope_back(task: Task) -> Sequence[Step]:
    """Turn pairs back."""
    return turned(task, back=True)


@whole("cross_entropy_loss")
def cross_entropy_loss(_: Params, logits: Array, labels: Array) -> Array:
    """`-sum(labels * log_softmax(logits)) / rows`; summed in f64, as one number."""
    shifted = logits - logits.max(-1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    loss = -np.einsum("...i,...i", labels, logarithms).sum(dtype=np.float64)
    return np.full((1, 1, 1, 1), loss / (logits.size // logits.shape[-1]), _F32)


@whole("cross_entropy_loss_back")
def cross_entropy_loss_back(_: Params, grad: Array, logits: Array, labels: Array) -> Array:
    """`grad * (softmax(logits) - labels) / rows`."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    powers /= powers.sum(-1, keepdims=True)
    result: Array = (powers - labels) * (grad.flat[0] / _F32(logits.size // logits.shape[-1]))
    return result


@whole("flash_attn_back")
def flash_attn_back(p: Params, q: Array, k: Array, v: Array, grad: Array) -> Array:
    """Gradients of q, k and v in a row; scores are computed again."""
    if not k.shape[2]:
        return _packed(np.zeros_like(q), k, v)
    # Axes are [batch of k, its copies in q, heads of k, their copies in q, rows, columns].
    batch, heads = k.shape[:2]
    groups = (batch, q.shape[0] // batch, heads, q.shape[1] // heads)
    queries, grads = (x.reshape(*groups, *x.shape[2:]) for x in (q, grad))
    keys, wide = k[:, None, :, None], v[:, None, :, None]
    scale = _F32(q.shape[-1] ** -0.5)
    scores = np.matmul(queries, keys.swapaxes(-1, -2)) * scale
    if p["masked"]:
        tokens, positions = scores.shape[-2:]
        hidden = np.triu(np.ones((tokens, positions), bool), positions - tokens + 1)
        scores[..., hidden] = -np.inf
    share = np.exp(scores - scores.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    back = np.matmul(grads, wide)
    back = share * (back - np.einsum("...i,...i->...", share, back)[..., None]) * scale
    return _packed(
        np.matmul(back, keys),
        np.matmul(back.swapaxes(-1, -2), queries).sum((1, 3)),
        np.matmul(grads.swapaxes(-1, -2), share).sum((1, 3)),
    )


def _packed(*parts: Array) -> Array:
    """Arrays one after another, each with zeros up to a multiple of `UNIT` elements."""
    padded = [np.pad(part.reshape(-1), (0, -part.size % UNIT)) for part in parts]
    return np.concatenate(padded).reshape(1, 1, 1, -1)
