"""Matrix products: rows against rows."""

import numpy as np

from tensorplug.tensor import Array
from tensorplug_cpu.reference.rows import checked_ids
from tensorplug_cpu.reference.table import Params, values


def shared(few: Array, axis: int, count: int) -> Array:
    """Each entry of `few` along `axis` for as many neighbours as make `count`."""
    return np.repeat(few, count // few.shape[axis], axis=axis)


@values("mul_mat")
def mul_mat(_: Params, w: Array, x: Array) -> Array:
    wide = shared(shared(w, 0, x.shape[0]), 1, x.shape[1])
    return x @ wide.swapaxes(-1, -2)


@values("mul_mat_id")
def mul_mat_id(_: Params, w: Array, x: Array, ids: Array) -> Array:
    experts, tokens = w[0], x[0]
    chosen = checked_ids("mul_mat_id", ids[0, 0], len(experts))
    y = np.empty((1, *chosen.shape, experts.shape[1]))
    for t, used in enumerate(chosen):
        for i, expert in enumerate(used):
            y[0, t, i] = experts[expert] @ tokens[t, i % tokens.shape[1]]
    return y
