"""Rotation of heads by a Hadamard matrix, so that a cache in blocks loses less (arXiv:2404.00456).

A few elements of keys are much larger than all others and would set the scale of their block.
Rotated, what they hold is spread over the head. Scores do not change, as queries are rotated too;
rotated values give a rotated result, and the matrix is its own inverse.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import tensorplug as tp
from tensorplug import Tensor

Floats = npt.NDArray[np.float32]


def rotated_together(head: int) -> int:
    """Elements of a head that are rotated together: its largest factor that is a power of two."""
    return head & -head


def hadamard(size: int) -> Floats:
    """The Walsh-Hadamard matrix in the order of Sylvester, over the root of its size."""
    found: Floats = np.full((1, 1), size**-0.5, np.float32)
    while len(found) < size:
        found = np.block([[found, found], [found, -found]])
    return found


@dataclass(frozen=True, slots=True)
class Rotation:
    """The matrices of one memory, f32, for heads of keys and of values."""

    keys: Tensor
    values: Tensor

    def of_keys(self, x: Tensor, name: str) -> Tensor:
        """Rotated heads of queries or keys; tokens are the last dimension in `ne` order."""
        return _rotated(self.keys, x, name)

    def of_values(self, x: Tensor, name: str) -> Tensor:
        """Rotated heads of values, or of a result, rotated back."""
        return _rotated(self.values, x, name)


def _rotated(matrix: Tensor, x: Tensor, name: str) -> Tensor:
    tokens, size = x.shape[0], matrix.ne[0]
    parts = tp.reshape(x, (tokens, x.size // tokens // size, size))
    return tp.reshape(tp.mul_mat(matrix, parts, hint="hadamard", name=name), x.shape)
