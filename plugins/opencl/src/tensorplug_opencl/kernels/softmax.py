"""Softmax of rows."""

from tensorplug.device import Tensor
from tensorplug_opencl.kernels.table import OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import lowers
from tensorplug_simt.own.softmax import soft_max_kernel, soft_max_of
from tensorplug_simt.program import Program

SOFT_MAX = soft_max_kernel("tensorplug_opencl:kernels/softmax.cl")


@lowers("soft_max", table=OWN)
def soft_max(node: Tensor, facts: Facts) -> Program:
    """Softmax of scale * x + slope * mask, sinks in the divisor only."""
    return soft_max_of(SOFT_MAX, node, facts, facts.row_group)
