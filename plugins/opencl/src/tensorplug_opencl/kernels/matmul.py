"""Products of matrices: `mul_mat`, `mul_mat_id`, `out_prod`."""

from tensorplug.dtypes import F64
from tensorplug.tensor import Tensor
from tensorplug_opencl.kernels import variants
from tensorplug_opencl.kernels.operands import Operands, operands
from tensorplug_opencl.kernels.table import OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element
from tensorplug_simt.lowering import NoKernel, lowers, need_type
from tensorplug_simt.program import Kernel, Program

TEXT = "tensorplug_opencl:kernels/product.cl"
REPEATS = (("count", "uint"), ("repeat2", "int"), ("repeat3", "int"))

PRODUCT = Kernel("product", TEXT, ("w", "x", "y"), ("y",), REPEATS)
OUTER = Kernel("outer_product", TEXT, ("w", "x", "y"), ("y",), REPEATS)
EXPERT_PRODUCT = Kernel(
    "expert_product", TEXT, ("w", "x", "ids", "y"), ("y",), (("count", "uint"),)
)


def need_products(w: Tensor, x: Tensor) -> None:
    """Raise NoKernel for types that no kernel multiplies."""
    if w.dtype is F64:
        raise NoKernel("no kernel for f64")
    need_type(x)


@lowers("mul_mat", table=OWN)
def mul_mat(node: Tensor, facts: Facts) -> Program:
    """y[n, m] = sum over k of w[k, n] * x[k, m]."""
    w, x = node.sources
    need_products(w, x)
    return fast(node, facts) or general(PRODUCT, node, facts)


def fast(node: Tensor, facts: Facts) -> Program | None:
    """The program that suits the device; None where it has none for these layouts and sizes."""
    these = operands_of(node)
    return variants.product(these, facts) if these is not None else None


def operands_of(node: Tensor) -> Operands | None:
    """The operands of a product that has several variants; None for other nodes."""
    if node.op not in ("mul_mat", "mul_mat_id") or node.sources[0].dtype is F64:
        return None
    return operands(node) if all(t.size for t in (*node.sources[:2], node)) else None


@lowers("out_prod", table=OWN)
def out_prod(node: Tensor, facts: Facts) -> Program:
    """y[i, j] = sum over k of a[i, k] * b[j, k]."""
    w, x = node.sources
    need_products(w, x)
    return general(OUTER, node, facts)


def general(kernel: Kernel, node: Tensor, facts: Facts) -> Program:
    """An item for each result; each matrix of `w` serves several of `x`."""
    w, x = node.sources
    repeat2, repeat3 = (x.ne[axis] // max(w.ne[axis], 1) for axis in (2, 3))
    places = {"w": w, "x": x, "y": node}
    return Program(
        (per_element(kernel, places, node.size, facts, repeat2=repeat2, repeat3=repeat3),)
    )


@lowers("mul_mat_id", table=OWN)
def mul_mat_id(node: Tensor, facts: Facts) -> Program:
    """y[:, i, t] = w[:, :, ids[i, t]] applied to x[:, i mod ne[1], t]."""
    w, x, ids = node.sources
    need_products(w, x)
    quick = fast(node, facts)
    if quick is not None:
        return quick
    places = {"w": w, "x": x, "ids": ids, "y": node}
    return Program((per_element(EXPERT_PRODUCT, places, node.size, facts),))
