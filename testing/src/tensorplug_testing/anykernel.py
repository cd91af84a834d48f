"""Kernels for fake devices, made of the float64 reference, for all ops of the reference."""

from collections.abc import Mapping
from types import MappingProxyType

from tensorplug.device import Array, Tensor
from tensorplug_cpu.reference import REFERENCE, Memory, decode, encode
from tensorplug_testing.arithmetic import KERNELS, Kernel


class _Arrays(Memory):
    """The arrays of one node, for a reference function to work on."""

    def __init__(self, arrays: Mapping[Tensor, Array]) -> None:
        super().__init__()
        self._arrays = arrays

    def window(self, tensor: Tensor) -> Array:
        return self._arrays[tensor]

    def value(self, tensor: Tensor) -> Array:
        return decode(tensor.dtype, self._arrays[tensor])

    def store(self, node: Tensor, values: Array) -> None:
        self._arrays[node][...] = encode(node.dtype, values)


def _kernel(node: Tensor, out: Array, *sources: Array) -> None:
    arrays = {**dict(zip(node.sources, sources, strict=True)), node: out}
    REFERENCE[node.op](node, _Arrays(arrays))


ALL_KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {**dict.fromkeys(REFERENCE, _kernel), **KERNELS}
)
"""A kernel for each op: from `arithmetic` if it has the op, otherwise from the reference."""
