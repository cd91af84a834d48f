"""Repetitions summed back."""

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference.table import Params, values


@values("repeat_back")
def repeat_back(p: Params, x: Array) -> Array:
    y = np.zeros(p["ne"][::-1])
    for index in np.ndindex(x.shape):
        y[tuple(i % n for i, n in zip(index, y.shape, strict=True))] += x[index]
    return y
