"""Ops on float32 arrays of four axes, slowest first; each returns its result."""

import numpy as np


def tiled(x, shape):
    return np.tile(x, [n // max(m, 1) for m, n in zip(x.shape, shape, strict=True)])


def shared(w, batch, *, modulo=False):
    """`w` as often as `batch` has: each entry for its share of neighbours."""
    times = [n // m for m, n in zip(w.shape[:2], batch, strict=True)]
    if modulo:
        return np.tile(w, (*times, 1, 1))
    return np.repeat(np.repeat(w, times[0], 0), times[1], 1)


def mul_mat(p, w, x, *, modulo=False):
    return x @ shared(w, x.shape[:2], modulo=modulo).swapaxes(2, 3)


def rms_norm(p, x):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True, dtype=np.float64) + p["eps"])


def angles(p, positions):
    steps = np.arange(p["dims"] // 2)
    turns = p["base"] ** (-2.0 * steps / p["dims"])
    angle = positions.reshape(-1)[:, None] * turns * p["scale"]
    return np.cos(angle)[:, None], np.sin(angle)[:, None]


def rope(p, x, turn, *, over_source=False):
    cos, sin = turn
    half = p["dims"] // 2
    i = np.arange(half)
    first, second = (2 * i, 2 * i + 1) if p["mode"] == "normal" else (i, i + half)
    y = x if over_source else x.copy()
    a, b = x[..., first], x[..., second]
    y[..., first], y[..., second] = a * cos - b * sin, a * sin + b * cos
    return y


def soft_max(p, x, mask, _sinks):
    return weights(p["scale"] * x, mask)


def weights(scores, mask):
    if mask is not None:
        rows = scores.shape[2]
        scores = scores + tiled(mask[:, :, :rows], scores.shape)
    powers = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    return powers / powers.sum(-1, keepdims=True)


def flash_attn_ext(p, q, k, v, mask, _sinks):
    k, v = (shared(t, q.shape[:2]) for t in (k, v))
    y = np.nan_to_num(weights(p["scale"] * (q @ k.swapaxes(2, 3)), mask)) @ v
    return y.swapaxes(1, 2)


def swiglu(p, gate, up):
    if up is None:
        gate, up = np.split(gate, 2, -1)
    return gate / (1 + np.exp(-gate)) * up


def get_rows(p, table, ids, *, clamped=False, raw=False):
    out = np.zeros((*ids.shape[1:], table.shape[3]), np.float32)
    for d, c in np.ndindex(table.shape[:2]):
        for i, row in enumerate(ids[0, d, c]):
            if clamped:
                row = min(max(row, 0), table.shape[2] - 1)
            if raw or 0 <= row < table.shape[2]:
                out[d, c, i] = table[d, c, row]
    return out


def set_rows(table, rows, ids, *, raw=False):
    """Writes into `table`, which has its own type."""
    for d, c in np.ndindex(rows.shape[:2]):
        for i, row in enumerate(ids[0, d % ids.shape[1], c % ids.shape[2]]):
            if raw or 0 <= row < table.shape[2]:
                table[d, c, row] = rows[d, c, i]


SIMPLE = {
    "add": lambda p, a, b: a + tiled(b, a.shape),
    "mul": lambda p, a, b: a * tiled(b, a.shape),
    "rms_norm": rms_norm,
    "soft_max": soft_max,
    "flash_attn_ext": flash_attn_ext,
    "swiglu": swiglu,
    "dup": lambda p, x: x,
    "cont": lambda p, x: x,
    "cpy": lambda p, x, target: x,
}
"""Kernels that take parameters and arrays and nothing else."""
