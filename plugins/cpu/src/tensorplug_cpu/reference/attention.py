"""Attention in one op."""

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference.matmul import shared
from tensorplug_cpu.reference.softmax import sloped_mask, weights
from tensorplug_cpu.reference.table import Params, values


@values("flash_attn_ext")
def flash_attn_ext(
    p: Params, q: Array, k: Array, v: Array, mask: Array | None, sinks: Array | None
) -> Array:
    k, v = (shared(shared(t, 0, q.shape[0]), 1, q.shape[1]) for t in (k, v))
    scores = p["scale"] * (q @ k.swapaxes(-1, -2))
    if p["softcap"]:
        scores = p["softcap"] * np.tanh(scores / p["softcap"])
    if mask is not None:
        scores = scores + sloped_mask(mask, p["max_bias"], scores.shape)
    blind = np.all(np.isneginf(scores), axis=-1, keepdims=True)
    # A token that may look at nothing gets zeros: there is nothing to take a mean of.
    y = np.where(blind, 0.0, weights(scores, sinks) @ v)
    return y.swapaxes(1, 2)
