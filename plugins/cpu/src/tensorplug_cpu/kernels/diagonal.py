"""Diagonals and triangles of matrices."""

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.whole import Params, whole


@whole("diag")
def diag(_: Params, x: Array) -> Array:
    """Vectors on the diagonals."""
    return np.where(np.eye(x.shape[-1], dtype=bool), x, np.float32(0))


@whole("diag_mask_zero")
def diag_mask_zero(p: Params, x: Array) -> Array:
    """Zeros right of a diagonal."""
    return np.where(np.tri(x.shape[-2], x.shape[-1], p["n_past"], dtype=bool), x, np.float32(0))


_KEPT = {
    "upper_diag": (-1, False),
    "upper": (0, False),
    "lower_diag": (0, True),
    "lower": (-1, True),
}
"""Diagonal up to which a lower triangle reaches, and whether that triangle is kept."""


@whole("tri")
def tri(p: Params, x: Array) -> Array:
    """One triangle of each matrix."""
    diagonal, lower = _KEPT[p["kind"]]
    triangle = np.tri(x.shape[-2], x.shape[-1], diagonal, dtype=bool)
    return np.where(triangle == lower, x, np.float32(0))


@whole("solve_tri")
def solve_tri(_: Params, a: Array, b: Array) -> Array:
    """Forward substitution, all columns and matrices at once."""
    x = np.empty(b.shape, np.float32)
    for i in range(b.shape[-2]):
        known = np.matmul(a[..., i : i + 1, :i], x[..., :i, :])
        np.divide(b[..., i : i + 1, :] - known, a[..., i : i + 1, i : i + 1], x[..., i : i + 1, :])
    return x
