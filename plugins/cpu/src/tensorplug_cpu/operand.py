"""`Operand`: a tensor as it lies in memory; and buffers that have layouts of their own."""

from abc import abstractmethod
from dataclasses import dataclass

from tensorplug.device import Array, ArrayBuffer, Tensor
from tensorplug.dtypes import DType


@dataclass(frozen=True, slots=True)
class Operand:
    """A source or a result as it lies in memory.

    `array` has four dimensions in NumPy order; for block types the last counts bytes. `dtype` says
    what the array holds: f32 for a weight that is stored expanded, whatever the tensor's own type.
    """

    array: Array
    dtype: DType


class OwnLayoutBuffer(ArrayBuffer):
    """Host memory in which tensors do not lie in their standard layout."""

    @abstractmethod
    def operand(self, tensor: Tensor, offset: int) -> Operand:
        """`tensor` as it lies here, its root starting at `offset`."""
