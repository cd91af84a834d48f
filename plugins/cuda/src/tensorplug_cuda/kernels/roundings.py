"""What products round their operands to, as the device declares it."""

from tensorplug.device import Rounding, Tensor
from tensorplug_cuda.kernels.columns import takes_few
from tensorplug_cuda.kernels.ways import USUAL, names_of
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.product import PRODUCTS, declared_rounding


def declared(node: Tensor, facts: Facts) -> Rounding:
    """Bytes for few columns; halves where tensor cores or cuBLASLt may be chosen."""
    if any(way != USUAL for way in names_of(node, facts)):
        return Rounding.HALVES
    few = node.op in PRODUCTS and takes_few(node)
    return declared_rounding(node, facts) if few else Rounding.NONE
