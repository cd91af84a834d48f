"""Element by element: arithmetic of two tensors and of a tensor with constants."""

# NumPy types most of what its functions return as Any.
# mypy: no-warn-return-any

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference.rows import checked_ids, rows_of
from tensorplug_cpu.reference.table import Params, values


def tiled(small: Array, shape: tuple[int, ...]) -> Array:
    """Copies of `small` side by side up to `shape`."""
    times = [want // max(n, 1) for n, want in zip(small.shape, shape, strict=True)]
    return np.tile(small, times)


@values("add")
def add(_: Params, a: Array, b: Array) -> Array:
    return a + tiled(b, a.shape)


@values("sub")
def sub(_: Params, a: Array, b: Array) -> Array:
    return a - tiled(b, a.shape)


@values("mul")
def mul(_: Params, a: Array, b: Array) -> Array:
    return a * tiled(b, a.shape)


@values("div")
def div(_: Params, a: Array, b: Array) -> Array:
    return a / tiled(b, a.shape)


@values("add_id")
def add_id(_: Params, a: Array, b: Array, ids: Array) -> Array:
    table = b[0, 0]
    return a + rows_of(table, checked_ids("add_id", ids[0, 0], len(table)))


@values("scale")
def scale(p: Params, x: Array) -> Array:
    return p["scale"] * x + p["bias"]


@values("clamp")
def clamp(p: Params, x: Array) -> Array:
    return np.minimum(np.maximum(x, p["min"]), p["max"])


@values("leaky_relu")
def leaky_relu(p: Params, x: Array) -> Array:
    return np.where(x > 0, x, p["slope"] * x)


@values("fill")
def fill(p: Params, x: Array) -> Array:
    return np.full(x.shape, p["value"])


@values("arange")
def arange(p: Params) -> Array:
    count = int(np.ceil((p["stop"] - p["start"]) / p["step"]))
    return (p["start"] + p["step"] * np.arange(count)).reshape(1, 1, 1, count)


@values("add1")
def add1(_: Params, a: Array, b: Array) -> Array:
    return a + b.reshape(-1)[0]
