"""Products of matrices in tiles, or with a group for each result."""

from dataclasses import replace

from tensorplug.device import Rounding, Tensor
from tensorplug.dtypes import F32, F64
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import group_size, per_element, per_row
from tensorplug_simt.lowering import NoKernel, lowers, need_type
from tensorplug_simt.program import Kernel, Launch, Program, blocks_of, launch
from tensorplug_simt.source import BYTES

REPEATS = (("repeat2", "int"), ("repeat3", "int"))
"""How many matrices of `x` meet one of `w`, along dimensions 2 and 3."""
COUNT = (("count", "uint"),)
PRODUCTS = ("mul_mat", "mul_mat_id")


TEXT = "tensorplug_simt:kernels/product.k"
PRODUCT = Kernel("product", TEXT, ("w", "x", "ids", "y"), ("y",), REPEATS, (BYTES,))
PANEL = Kernel("product_panel", TEXT, ("w", "x", "y"), ("y",), REPEATS, (BYTES,))
TILE = Kernel("product_tile", TEXT, ("w", "x", "y"), ("y",), REPEATS, (BYTES,))
HADAMARD = Kernel(
    "hadamard", "tensorplug_simt:kernels/hadamard.k", ("x", "y"), ("y",), (("scale", "float"),)
)
OUTER_PRODUCT = Kernel("outer_product", TEXT, ("w", "x", "y"), ("y",), (*COUNT, *REPEATS), (BYTES,))

TILE_ROWS, TILE_COLUMNS, OF_ITEM = 64, 32, 16
"""Results of a tile along rows of `w` and of `x`, and how many of them an item has."""
PANEL_ROWS, PANEL_COLUMNS = 16, 64
"""Those of an item that has a panel of `w` by itself, on wide devices."""
FEW = 4
"""Fewer rows of `x` are not worth a tile."""


@lowers("mul_mat", "mul_mat_id")
def product(node: Tensor, facts: Facts) -> Program:
    """y[n, m] = sum over k of w[k, n] * x[k, m]; ids choose the matrix of w for each row of x."""
    need_product(node)
    if transform := hadamard(node, facts):
        return transform
    w, x = node.sources[:2]
    in_order = w.nb[0] == w.dtype.size or w.ne[0] == w.dtype.block
    many = node.op == "mul_mat" and node.size and x.ne[1] >= FEW
    if many and not facts.wide and (in_order or not w.dtype.is_block):
        return Program((_tiles(TILE, node, (TILE_ROWS, TILE_COLUMNS), OF_ITEM),))
    if many and facts.wide and in_order and x.dtype is F32 and x.nb[0] == F32.size:
        return Program((_tiles(PANEL, node, (PANEL_ROWS, PANEL_COLUMNS)),))
    places = {"w": w, "x": x, "y": node}
    if node.op == "mul_mat_id":
        places["ids"] = node.sources[2]
    numbers = repeats(w, x if node.op == "mul_mat" else w)
    groups = (node.ne[0], node.ne[1], node.ne[2] * node.ne[3])
    items = group_size(x.ne[0], facts)
    return Program((per_row(PRODUCT, places, groups, facts, items=items, numbers=numbers),))


def hadamard(node: Tensor, facts: Facts) -> Program | None:
    """The transform that the hint of a product promises; None where there is no hint or no room."""
    n = node.ne[0]
    room = n * F32.size <= facts.local_memory
    if node.params.get("hint") != "hadamard" or not (room and node.size):
        return None
    places = {"x": node.sources[1], "y": node}
    rows = (node.ne[1], node.ne[2], node.ne[3])
    items, length = group_size(n, facts), {"LENGTH": n}
    scale = {"scale": n**-0.5}
    return Program(
        (per_row(HADAMARD, places, rows, facts, items=items, defines=length, numbers=scale),)
    )


def _tiles(kernel: Kernel, node: Tensor, sides: tuple[int, int], of_item: int = 0) -> Launch:
    """A group for each tile of results; one item where `of_item` does not say what each has."""
    w, x = node.sources
    items = sides[0] * sides[1] // of_item if of_item else 1
    tile = {"TILE_N": sides[0], "TILE_M": sides[1]} if of_item else {}
    return launch(
        kernel,
        {"w": w, "x": x, "y": node},
        groups=(*map(blocks_of, node.ne[:2], sides), node.ne[2] * node.ne[3]),
        local=(items,),
        defines={"GROUP_SIZE": items, **tile},
        numbers=repeats(w, x),
    )


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
