"""Matrix products: rows against rows."""

import numpy as np

from tensorplug.device import Array
from tensorplug.ops.ids import NO_ROW
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
    y = np.zeros((1, *chosen.shape, experts.shape[1]))
    for t, used in enumerate(chosen):
        for i, expert in enumerate(used):
            if expert != NO_ROW:
                y[0, t, i] = experts[expert] @ tokens[t, i % tokens.shape[1]]
    return y


@values("out_prod")
def out_prod(_: Params, a: Array, b: Array) -> Array:
    y = np.zeros((*b.shape[:2], b.shape[3], a.shape[3]))
    for d, c in np.ndindex(b.shape[:2]):
        weights = a[d * a.shape[0] // b.shape[0], c * a.shape[1] // b.shape[1]]
        for k in range(b.shape[2]):
            y[d, c] += np.outer(b[d, c, k], weights[k])
    return y
