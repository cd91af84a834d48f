"""What products round their operands to, as the device declares it."""

from tensorplug.device import Rounding, Tensor
from tensorplug_cuda.kernels import attention, mma
from tensorplug_cuda.kernels.columns import takes_few
from tensorplug_cuda.kernels.matmul import has_tiles
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.product import PRODUCTS, declared_rounding


def declared(node: Tensor, facts: Facts) -> Rounding:
    """Bytes for few columns; halves where tensor cores compute."""
    if node.op == "flash_attn_ext":
        return Rounding.HALVES if attention.by_halves(node, facts) else Rounding.NONE
    if node.op not in PRODUCTS:
        return Rounding.NONE
    if has_tiles(node) and mma.takes(node, facts):
        return Rounding.HALVES
    return declared_rounding(node, facts) if takes_few(node) else Rounding.NONE
