"""Softmax of rows, masks, and the slopes of masks."""

# NumPy types most of what its functions return as Any.
# mypy: no-warn-return-any

import math

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference.elementwise import tiled
from tensorplug_cpu.reference.table import Params, values


def slopes(max_bias: float, heads: int) -> Array:
    """How steep the mask of each head is, shaped to multiply [batch, heads, rows, n].

    Heads up to the largest power of two take the powers of one base, the rest the odd powers of its
    square root. Without `max_bias` all are 1.
    """
    steep = np.ones(heads)
    if max_bias > 0:
        even = 2 ** math.floor(math.log2(heads))
        base = 2.0 ** (-max_bias / even)
        half = 2.0 ** (-max_bias / 2 / even)
        for h in range(heads):
            steep[h] = base ** (h + 1) if h < even else half ** (2 * (h - even) + 1)
    return steep.reshape(1, heads, 1, 1)


def sloped_mask(mask: Array, max_bias: float, shape: tuple[int, ...]) -> Array:
    """What is added to scores of `shape` [batch, heads, rows, n]."""
    batch, heads, rows, n = shape
    return slopes(max_bias, heads) * tiled(mask[:, :, :rows], (batch, heads, rows, n))


def weights(scores: Array, sinks: Array | None) -> Array:
    """Softmax of each row; `sinks` add one term per head to the divisor."""
    largest = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    sink = None if sinks is None else sinks.reshape(1, -1, 1, 1)
    if sink is not None:
        largest = np.maximum(largest, sink)
    powers = np.exp(scores - largest)
    divisor = np.sum(powers, axis=-1, keepdims=True)
    if sink is not None:
        divisor = divisor + np.exp(sink - largest)
    return powers / divisor


@values("soft_max")
def soft_max(p: Params, x: Array, mask: Array | None, sinks: Array | None) -> Array:
    scores = p["scale"] * x
    if mask is not None:
        scores = scores + sloped_mask(mask, p["max_bias"], x.shape)
    return weights(scores, sinks)


@values("diag_mask_inf")
def diag_mask_inf(p: Params, x: Array) -> Array:
    i, j = np.arange(x.shape[-1]), np.arange(x.shape[-2])[:, None]
    return np.where(i > p["n_past"] + j, -np.inf, x)
