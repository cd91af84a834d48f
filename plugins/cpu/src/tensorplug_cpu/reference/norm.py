"""Rows divided by a statistic of themselves."""

# NumPy types most of what its functions return as Any.
# mypy: no-warn-return-any

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference.table import Params, values


@values("norm")
def norm(p: Params, x: Array) -> Array:
    mean = np.mean(x, axis=-1, keepdims=True)
    variance = np.var(x, axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + p["eps"])


@values("rms_norm")
def rms_norm(p: Params, x: Array) -> Array:
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + p["eps"])


@values("l2_norm")
def l2_norm(p: Params, x: Array) -> Array:
    return x / np.maximum(np.sqrt(np.sum(x**2, axis=-1, keepdims=True)), p["eps"])


@values("group_norm")
def group_norm(p: Params, x: Array) -> Array:
    y = np.empty_like(x)
    channels = x.shape[1]
    size = -(-channels // p["groups"])
    for image in range(len(x)):
        for start in range(0, channels, size):
            group = slice(start, start + size)
            part = x[image, group]
            y[image, group] = (part - part.mean()) / np.sqrt(part.var() + p["eps"])
    return y
