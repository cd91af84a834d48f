"""Kernels for fake devices from the float64 reference, for all ops that it knows."""

from collections.abc import Mapping
from types import MappingProxyType

from tensorplug.graph.tensor import Array, Tensor
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
"""A kernel for each op of the reference; those of `arithmetic` where it has one."""
