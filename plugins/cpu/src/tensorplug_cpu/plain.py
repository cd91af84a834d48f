"""The reference functions on bound memory: slow, in f64, each result rounded to its own type."""

from collections.abc import Callable, Sequence
from functools import partial

from tensorplug.device import Array, Tensor
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.reference import Memory, decode, encode
from tensorplug_cpu.reference.table import action
from tensorplug_cpu.threads import Step


class BoundMemory(Memory):
    """What the reference functions read and write: the memory that a plan is bound to."""

    def __init__(self, resolve: Callable[[Tensor], Operand]) -> None:
        super().__init__()
        self._resolve = resolve

    def window(self, tensor: Tensor) -> Array:
        return self._resolve(tensor).array

    def value(self, tensor: Tensor) -> Array:
        operand = self._resolve(tensor)
        return decode(operand.dtype, operand.array)

    def store(self, tensor: Tensor, values: Array) -> None:
        self.window(tensor)[...] = encode(tensor.dtype, values)


def reference_steps(node: Tensor, resolve: Callable[[Tensor], Operand]) -> Sequence[Step]:
    """The one step of `node` by its reference function. Raises Unsupported."""
    return [partial(action(node.op), node, BoundMemory(resolve))]
