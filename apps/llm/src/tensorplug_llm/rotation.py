"""Rotation by a Hadamard matrix, so that a cache in blocks loses less (arXiv:2404.00456).

A few elements of keys are much larger than all others and set the scale of their block. Rotated,
what they hold is spread over the block. Scores do not change, as queries are rotated too; rotated
values give a rotated result, and the matrix is its own inverse. Blocks are rotated by themselves:
over whole heads of 256 elements the errors of Gemma 3 grow (`benchmarks/kv_types.py`).
"""

import numpy as np
import numpy.typing as npt

import tensorplug as tp
from tensorplug import Tensor

Floats = npt.NDArray[np.float32]


def hadamard(size: int) -> Floats:
    """The Walsh-Hadamard matrix in the order of Sylvester, over the root of its size."""
    found: Floats = np.full((1, 1), size**-0.5, np.float32)
    while len(found) < size:
        found = np.block([[found, found], [found, -found]])
    return found


def rotated(matrix: Tensor, x: Tensor, name: str) -> Tensor:
    """Parts of rows of `x`, as long as `matrix`, rotated; tokens are the first axis of `x`."""
    tokens, size = x.shape[0], matrix.ne[0]
    parts = tp.reshape(x, (tokens, x.size // tokens // size, size))
    return tp.reshape(tp.mul_mat(matrix, parts, hint="hadamard", name=name), x.shape)
