"""Products of matrices with an item for each result: what is left where nothing faster fits."""

from dataclasses import replace

from tensorplug.device import Rounding, Tensor
from tensorplug.dtypes import F64
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element
from tensorplug_simt.lowering import Lowering, NoKernel, lowers, need_type
from tensorplug_simt.program import Kernel, Program

REPEATS = (("repeat2", "int"), ("repeat3", "int"))
"""How many matrices of `x` meet one of `w`, along dimensions 2 and 3."""
COUNT = (("count", "uint"),)
PRODUCTS = ("mul_mat", "mul_mat_id")


def product_kernel(text: str) -> Kernel:
    """The section `product` of `text`."""
    return Kernel("product", text, ("w", "x", "y"), ("y",), (*COUNT, *REPEATS))


def expert_kernel(text: str) -> Kernel:
    """The section `expert_product` of `text`."""
    return Kernel("expert_product", text, ("w", "x", "ids", "y"), ("y",), COUNT)


def lower_out_prod(text: str, own: dict[str, Lowering]) -> None:
    """Enter a lowering to the section `outer_product` of `text` into a backend's table."""
    kernel = Kernel("outer_product", text, ("w", "x", "y"), ("y",), (*COUNT, *REPEATS))

    @lowers("out_prod", table=own)
    def _(node: Tensor, facts: Facts) -> Program:
        need_product(node)
        return product(kernel, node, facts)


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


def product(kernel: Kernel, node: Tensor, facts: Facts) -> Program:
    """Each matrix of `w` serves several of `x`."""
    w, x = node.sources
    places = {"w": w, "x": x, "y": node}
    return Program((per_element(kernel, places, node.size, facts, numbers=repeats(w, x)),))


def expert_product(kernel: Kernel, node: Tensor, facts: Facts) -> Program:
    """Ids choose the matrix of `w` for each row of `x`."""
    w, x, ids = node.sources
    places = {"w": w, "x": x, "ids": ids, "y": node}
    return Program((per_element(kernel, places, node.size, facts),))


def repeats(w: Tensor, x: Tensor) -> dict[str, int | float]:
    """The numbers REPEATS of a product."""
    repeat2, repeat3 = (x.ne[axis] // max(w.ne[axis], 1) for axis in (2, 3))
    return {"repeat2": repeat2, "repeat3": repeat3}
