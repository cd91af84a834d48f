"""Softmax of rows."""

from tensorplug.device import Tensor
from tensorplug_metal.kernels.table import OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import group_size
from tensorplug_simt.lowering import lowers
from tensorplug_simt.own.softmax import SLOPE, TEXT, soft_max_kernel, soft_max_of
from tensorplug_simt.program import Program

SOFT_MAX = soft_max_kernel(TEXT, SLOPE)

KEPT = 8
"""Elements of a row that an item holds in registers; longer rows lie in memory meanwhile."""


@lowers("soft_max", table=OWN)
def soft_max(node: Tensor, facts: Facts) -> Program:
    """Softmax of scale * x + slope * mask, sinks in the divisor only."""
    items = group_size(node.ne[0], facts)
    return soft_max_of(SOFT_MAX, node, facts, items, KEPT=KEPT if node.ne[0] <= KEPT * items else 0)
