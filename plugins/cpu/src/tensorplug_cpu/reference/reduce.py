"""Many elements to one; running sums and orders of rows."""

# NumPy types most of what its functions return as Any.
# mypy: no-warn-return-any

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference.table import Params, values


@values("sum")
def sum(_: Params, x: Array) -> Array:
    return np.sum(x, keepdims=True)


@values("sum_rows")
def sum_rows(_: Params, x: Array) -> Array:
    return np.sum(x, axis=-1, keepdims=True)


@values("mean")
def mean(_: Params, x: Array) -> Array:
    return np.mean(x, axis=-1, keepdims=True)


@values("cumsum")
def cumsum(_: Params, x: Array) -> Array:
    return np.cumsum(x, axis=-1)


@values("argmax")
def argmax(_: Params, x: Array) -> Array:
    # One index per row: the rows become the fastest dimension.
    return np.argmax(x, axis=-1).reshape(1, 1, 1, -1)


@values("argsort")
def argsort(p: Params, x: Array) -> Array:
    return np.argsort(-x if p["descending"] else x, axis=-1, kind="stable")


@values("top_k")
def top_k(p: Params, x: Array) -> Array:
    return np.argsort(-x, axis=-1, kind="stable")[..., : p["k"]]


@values("count_equal")
def count_equal(_: Params, a: Array, b: Array) -> Array:
    equal = [x == y for x, y in zip(a.flat, b.flat, strict=True)]
    return np.array(equal.count(True)).reshape(1, 1, 1, 1)
