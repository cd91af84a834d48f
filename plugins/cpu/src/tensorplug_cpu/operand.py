"""`Operand`: a tensor as it lies in memory; and buffers that have layouts of their own."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from tensorplug.buffer import Buffer, BufferType, BufferUsage
from tensorplug.dtypes import DType
from tensorplug.tensor import Array, Tensor


@dataclass(frozen=True, slots=True)
class Operand:
    """A source or a result as it lies in memory.

    `array` has four dimensions in NumPy order; for block types the last counts bytes. `dtype` says
    what the array holds: f32 for a weight that is stored expanded, whatever the tensor's own type.
    """

    array: Array
    dtype: DType


class OwnLayoutBuffer(Buffer):
    """Host memory in which tensors do not lie in their standard layout."""

    def __init__(self, buffer_type: BufferType, memory: Array, usage: BufferUsage) -> None:
        super().__init__(buffer_type, memory.size, usage)
        self._memory = memory

    @abstractmethod
    def operand(self, tensor: Tensor, offset: int) -> Operand:
        """`tensor` as it lies here, its root starting at `offset`."""

    def _write(self, offset: int, data: memoryview) -> None:
        self._memory[offset : offset + data.nbytes] = data

    def _read(self, offset: int, out: memoryview) -> None:
        np.frombuffer(out, np.uint8)[:] = self._memory[offset : offset + out.nbytes]

    def _fill(self, offset: int, size: int, value: int) -> None:
        self._memory[offset : offset + size] = value

    def _close(self) -> None:
        # Arrays handed out keep the memory alive; the buffer itself lets go of it.
        self._memory = np.empty(0, np.uint8)
