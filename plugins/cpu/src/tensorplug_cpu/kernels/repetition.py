"""Repetitions summed back."""

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.whole import Params, whole


@whole("repeat_back")
def repeat_back(p: Params, x: Array) -> Array:
    """Each dimension becomes repetitions times size; the repetitions are summed."""
    wanted = p["ne"][::-1]
    split = [
        n for large, small in zip(x.shape, wanted, strict=True) for n in (large // small, small)
    ]
    summed: Array = np.add.reduce(x.reshape(split), axis=(0, 2, 4, 6))
    return summed
