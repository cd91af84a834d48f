"""Diagonals and triangles of matrices: rows are the last but one axis."""

# NumPy types most of what its functions return as Any.
# mypy: no-warn-return-any

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference.table import Params, values


@values("diag")
def diag(_: Params, x: Array) -> Array:
    n = x.shape[-1]
    y = np.zeros((*x.shape[:2], n, n))
    for i in range(n):
        y[..., i, i] = x[..., 0, i]
    return y


@values("diag_mask_zero")
def diag_mask_zero(p: Params, x: Array) -> Array:
    i, j = np.arange(x.shape[-1]), np.arange(x.shape[-2])[:, None]
    return np.where(i > p["n_past"] + j, 0.0, x)


@values("tri")
def tri(p: Params, x: Array) -> Array:
    i, j = np.arange(x.shape[-1]), np.arange(x.shape[-2])[:, None]
    kept = {"upper_diag": i >= j, "upper": i > j, "lower_diag": i <= j, "lower": i < j}
    return np.where(kept[p["kind"]], x, 0.0)


@values("solve_tri")
def solve_tri(_: Params, a: Array, b: Array) -> Array:
    x = np.zeros(b.shape)
    for i in range(b.shape[-2]):
        known = np.einsum("...j,...jk->...k", a[..., i, :i], x[..., :i, :])
        x[..., i, :] = (b[..., i, :] - known) / a[..., i, i, None]
    return x
