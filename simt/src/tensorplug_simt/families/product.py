"""Products of matrices with a group for each result: what is left where nothing faster fits."""

from dataclasses import replace

from tensorplug.device import Rounding, Tensor
from tensorplug.dtypes import F64
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import group_size, per_element, per_row
from tensorplug_simt.lowering import NoKernel, lowers, need_type
from tensorplug_simt.program import Kernel, Program

REPEATS = (("repeat2", "int"), ("repeat3", "int"))
"""How many matrices of `x` meet one of `w`, along dimensions 2 and 3."""
COUNT = (("count", "uint"),)
PRODUCTS = ("mul_mat", "mul_mat_id")


TEXT = "tensorplug_simt:kernels/product.k"
PRODUCT = Kernel("product", TEXT, ("w", "x", "ids", "y"), ("y",), REPEATS)
OUTER_PRODUCT = Kernel("outer_product", TEXT, ("w", "x", "y"), ("y",), (*COUNT, *REPEATS))


@lowers("mul_mat", "mul_mat_id")
def product(node: Tensor, facts: Facts) -> Program:
    """y[n, m] = sum over k of w[k, n] * x[k, m]; ids choose the matrix of w for each row of x."""
    need_product(node)
    w, x = node.sources[:2]
    places = {"w": w, "x": x, "y": node}
    if node.op == "mul_mat_id":
        places["ids"] = node.sources[2]
    numbers = repeats(w, x if node.op == "mul_mat" else w)
    groups = (node.ne[0], node.ne[1], node.ne[2] * node.ne[3])
    items = group_size(x.ne[0], facts)
    return Program((per_row(PRODUCT, places, groups, facts, items=items, numbers=numbers),))


@lowers("out_prod")
def out_prod(node: Tensor, facts: Facts) -> Program:
    """y[n, m] = sum over k of w[n, k] * x[m, k]."""
    need_product(node)
    w, x = node.sources
    places = {"w": w, "x": x, "y": node}
    return Program((per_element(OUTER_PRODUCT, places, node.size, facts, numbers=repeats(w, x)),))


def may_round(node: Tensor) -> bool:
    """Whether a product may round its columns; of other nodes, true."""
    return node.params.get("precision", "default") == "default"


def declared_rounding(node: Tensor, facts: Facts) -> Rounding:
    """What a product may round its columns to: bytes where `facts` allow it for block types."""
    takes_bytes = node.op in PRODUCTS and node.sources[0].dtype.is_block and may_round(node)
    return Rounding.BYTES if takes_bytes and facts.int8_activations else Rounding.NONE


def rounding(facts: Facts, *nodes: Tensor) -> Facts:
    """Facts by which columns are rounded only where all of the nodes may round theirs."""
    exact = facts.int8_activations and not all(map(may_round, nodes))
    return replace(facts, int8_activations=False) if exact else facts


def need_product(node: Tensor) -> None:
    """Raise NoKernel for a product of types that no kernel multiplies."""
    w, x = node.sources[:2]
    if w.dtype is F64:
        raise NoKernel("no kernel for f64")
    need_type(x)


def repeats(w: Tensor, x: Tensor) -> dict[str, int | float]:
    """The numbers REPEATS of a product."""
    repeat2, repeat3 = (x.ne[axis] // max(w.ne[axis], 1) for axis in (2, 3))
    return {"repeat2": repeat2, "repeat3": repeat3}
