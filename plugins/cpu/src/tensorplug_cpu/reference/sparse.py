"""Scores of positions for sparse attention, and the mixing of residual streams."""

# NumPy types most of what its functions return as Any.
# mypy: no-warn-return-any

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference.softmax import weights as softmax
from tensorplug_cpu.reference.table import Params, values


@values("lightning_indexer")
def lightning_indexer(_: Params, q: Array, k: Array, weights: Array, mask: Array) -> Array:
    y = np.zeros((q.shape[0], 1, q.shape[1], k.shape[1]))
    for b in range(q.shape[0]):
        scores = np.maximum(q[b] @ k[b, :, 0].T, 0)
        total = np.einsum("th,thn->tn", weights[b, 0], scores)
        y[b, 0] = total + mask[b % mask.shape[0], 0]
    return y


@values("dsv4_hc_comb")
def dsv4_hc_comb(p: Params, mixes: Array, scale: Array, base: Array) -> Array:
    tokens, size = mixes.shape[2:]
    streams = round(np.sqrt(size + 1)) - 1
    logits = (scale[..., 2:3] * mixes + base)[..., 2 * streams :]
    y = softmax(logits.reshape(tokens, streams, streams), None) + p["eps"]
    y = y / (np.sum(y, axis=1, keepdims=True) + p["eps"])
    for _ in range(p["n_iter"] - 1):
        for axis in (2, 1):
            y = y / (np.sum(y, axis=axis, keepdims=True) + p["eps"])
    return y[None]


@values("dsv4_hc_pre")
def dsv4_hc_pre(p: Params, x: Array, weights: Array) -> Array:
    shares = 1 / (1 + np.exp(-weights)) if p["gated"] else weights[0, ..., None]
    return p["scale"] * np.sum(x * shares, axis=2)[:, None]


@values("dsv4_hc_post")
def dsv4_hc_post(_: Params, x: Array, residual: Array, post: Array, comb: Array | None) -> Array:
    added = np.einsum("bti,btd->tdi", x[0], post[0])[None]
    if comb is None:
        return added + residual
    return added + np.einsum("btsi,btsd->btdi", residual, comb)
