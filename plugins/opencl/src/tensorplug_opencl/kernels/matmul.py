"""Products of matrices: `mul_mat`, `mul_mat_id`."""

from tensorplug.device import Rounding, Tensor
from tensorplug.dtypes import F64
from tensorplug_opencl.kernels import variants
from tensorplug_opencl.kernels.operands import Operands, operands
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.product import (
    declared_rounding,
    hadamard,
    need_product,
    product,
    rounding,
)
from tensorplug_simt.program import Program


def mul_mat(node: Tensor, facts: Facts) -> Program:
    """y[n, m] = sum over k of w[k, n] * x[k, m]; ids choose the matrix of w for each row of x."""
    need_product(node)
    return hadamard(node, facts) or fast(node, facts) or product(node, facts)


def fast(node: Tensor, facts: Facts) -> Program | None:
    """The program that suits the device; None where it has none for these layouts and sizes."""
    these = operands_of(node)
    return variants.product(these, rounding(facts, node)) if these is not None else None


def rounding_of(node: Tensor, facts: Facts) -> Rounding:
    """Bytes where a product may round its rows to them, and the variant that is chosen does."""
    declared = declared_rounding(node, facts)
    if declared is Rounding.NONE:
        return declared
    these = operands_of(node)
    rounds = these is not None and variants.chosen(these, facts) in variants.ROUNDING
    return declared if rounds else Rounding.NONE


def operands_of(node: Tensor) -> Operands | None:
    """The operands of a product that has several variants; None for other nodes."""
    if node.op not in ("mul_mat", "mul_mat_id") or node.sources[0].dtype is F64:
        return None
    return operands(node) if all(t.size for t in (*node.sources[:2], node)) else None
