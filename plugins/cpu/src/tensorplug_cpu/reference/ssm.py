"""State space models: convolution over time, selective scan."""

# NumPy types most of what its functions return as Any.
# mypy: no-warn-return-any

import numpy as np

from tensorplug.tensor import Array
from tensorplug_cpu.reference.table import Params, values


@values("ssm_conv")
def ssm_conv(_: Params, x: Array, kernel: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[-1], axis=-1)
    return np.einsum("bscti,ci->bstc", windows, kernel[0, 0])
