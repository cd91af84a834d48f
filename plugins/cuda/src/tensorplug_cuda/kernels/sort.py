"""Orders of rows: argsort, and the places of the largest elements."""

from tensorplug.device import Tensor
from tensorplug_cuda.kernels.table import OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.sort import in_parts
from tensorplug_simt.lowering import lowers
from tensorplug_simt.program import Program

PART = 4096
"""Elements that are sorted in the memory of a group: 32 KiB."""


@lowers("argsort", "top_k", table=OWN)
def order(node: Tensor, facts: Facts) -> Program:
    """Indices of each row in rising or falling order of the elements, or the first k of them."""
    return in_parts(node, facts, largest=PART)
