"""The largest or the mean of each window, window by window."""

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference.table import Params, values

LOWEST = float(np.finfo(np.float32).min)
"""The largest of no elements; and less than that counts as that."""


def window(p: Params, dim: int, at: int, size: int) -> slice:
    """The elements that window number `at` has along `dim`, one of `size` elements."""
    start = at * p[f"s{dim}"] - int(p[f"p{dim}"])
    return slice(max(start, 0), max(min(start + p[f"k{dim}"], size), 0))


def count(p: Params, dim: int, size: int) -> int:
    """How many windows there are along `dim`."""
    return int((size + 2 * p[f"p{dim}"] - p[f"k{dim}"]) // p[f"s{dim}"]) + 1


@values("pool_1d")
def pool_1d(p: Params, x: Array) -> Array:
    size = x.shape[3]
    y = np.zeros((*x.shape[:3], count(p, 0, size)))
    for u in range(y.shape[3]):
        seen = x[..., window(p, 0, u, size)]
        if p["kind"] == "max":
            y[..., u] = seen.max(axis=-1, initial=LOWEST)
        elif seen.shape[3]:
            y[..., u] = seen.mean(axis=-1)
    return y


@values("pool_2d")
def pool_2d(p: Params, x: Array) -> Array:
    high, wide = x.shape[2:]
    y = np.zeros((*x.shape[:2], count(p, 1, high), count(p, 0, wide)))
    for v in range(y.shape[2]):
        for u in range(y.shape[3]):
            seen = x[:, :, window(p, 1, v, high), window(p, 0, u, wide)]
            if p["kind"] == "max":
                y[:, :, v, u] = seen.max(axis=(2, 3), initial=LOWEST)
            else:
                y[:, :, v, u] = seen.sum(axis=(2, 3)) / (p["k0"] * p["k1"])
    return y


@values("pool_2d_back")
def pool_2d_back(p: Params, grad: Array, x: Array) -> Array:
    high, wide = x.shape[2:]
    y = np.zeros(x.shape)
    for n, c, v, u in np.ndindex(grad.shape):
        place = (n, c, window(p, 1, v, high), window(p, 0, u, wide))
        if p["kind"] == "avg":
            y[place] += grad[n, c, v, u] / (p["k0"] * p["k1"])
        elif (seen := np.fmax(x[place], LOWEST)).max(initial=LOWEST) > LOWEST:
            y[place].flat[np.argmax(seen)] += grad[n, c, v, u]
    return y
