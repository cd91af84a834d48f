"""Which nodes the kernels compute, and what their records hold, by family."""

from tensorplug_native.encode import RULES
from tensorplug_native.rules import conv, copy, elementwise, products, rope, rows
from tensorplug_native.rules.common import ACTIVATIONS, BLOCKS, PACKABLE, READABLE, WRITABLE

__all__ = [
    "ACTIVATIONS",
    "BLOCKS",
    "PACKABLE",
    "READABLE",
    "RULES",
    "WRITABLE",
    "conv",
    "copy",
    "elementwise",
    "products",
    "rope",
    "rows",
]
