"""Products of matrices in tiles, or with a group for each result."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from tensorplug.device import Rounding, Tensor
from tensorplug.dtypes import F32, F64
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import Regions, group_size, per_element, per_row, regions_of
from tensorplug_simt.lowering import NoKernel, lowers, need_type
from tensorplug_simt.program import Kernel, Launch, Number, Program, Region, blocks_of, launch
from tensorplug_simt.source import BYTES

REPEATS = (("repeat2", "int"), ("repeat3", "int"))
"""How many matrices of `x` meet one of `w`, along dimensions 2 and 3."""
COUNT = (("count", "uint"),)
PRODUCTS = ("mul_mat", "mul_mat_id")


TEXT = "tensorplug_simt:kernels/product.k"
ROWS_OF = "tensorplug_simt:kernels/product_rows.k"
"""A part of kernels that multiply: which rows they have."""
PRODUCT = Kernel("product", TEXT, ("w", "x", "ids", "y"), ("y",), REPEATS, (BYTES,))
PANEL = Kernel("product_panel", TEXT, ("w", "x", "y"), ("y",), REPEATS, (ROWS_OF, BYTES))
TILE = Kernel("product_tile", TEXT, ("w", "x", "lists", "y"), ("y",), REPEATS, (ROWS_OF, BYTES))
"""With `lists` its rows are those that experts serve."""
HADAMARD = Kernel(
    "hadamard", "tensorplug_simt:kernels/hadamard.k", ("x", "y"), ("y",), (("scale", "float"),)
)
OUTER_PRODUCT = Kernel("outer_product", TEXT, ("w", "x", "y"), ("y",), (*COUNT, *REPEATS), (BYTES,))

PANEL_ROWS, PANEL_COLUMNS = 16, 64
"""Results of a panel of `w` along rows of `w` and of `x`, which one item has by itself."""
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
    regions: dict[str, Tensor | Region] = {"w": w, "x": x, "y": node}
    matrices = node.ne[2] * node.ne[3]
    if many and not facts.wide and (in_order or not w.dtype.is_block):
        return Program((tiled(SMALL_TILE, regions, matrices, repeats(w, x)),))
    if many and facts.wide and in_order and x.dtype is F32 and x.nb[0] == F32.size:
        sides = (blocks_of(node.ne[0], PANEL_ROWS), blocks_of(node.ne[1], PANEL_COLUMNS))
        numbers = repeats(w, x)
        return Program((per_row(PANEL, regions, (*sides, matrices), facts, numbers=numbers),))
    if node.op == "mul_mat_id":
        regions["ids"] = node.sources[2]
    numbers = repeats(w, x if node.op == "mul_mat" else w)
    groups = (node.ne[0], node.ne[1], matrices)
    items = group_size(x.ne[0], facts)
    return Program((per_row(PRODUCT, regions, groups, facts, items=items, numbers=numbers),))


def hadamard(node: Tensor, facts: Facts) -> Program | None:
    """The transform that the hint of a product promises; None where there is no hint or no room."""
    n = node.ne[0]
    room = n * F32.size <= facts.local_memory
    if node.params.get("hint") != "hadamard" or not (room and node.size):
        return None
    regions = {"x": node.sources[1], "y": node}
    rows = (node.ne[1], node.ne[2], node.ne[3])
    items, length = group_size(n, facts), {"LENGTH": n}
    scale = {"scale": n**-0.5}
    return Program(
        (per_row(HADAMARD, regions, rows, facts, items=items, defines=length, numbers=scale),)
    )


class Tile(NamedTuple):
    """Sizes of a tile of results and of an item's share of it, and how deep it is."""

    n: int
    m: int
    item_n: int
    item_m: int
    depth: int = 16

    @property
    def items(self) -> int:
        """Items of a group."""
        return self.n // self.item_n * (self.m // self.item_m)

    @property
    def local_memory(self) -> int:
        """Bytes of local memory, at most; blocks are read 32 elements deep."""
        return ((self.n + 1) * max(self.depth, 32) + (self.m + 1) * self.depth) * F32.size

    def fits(self, facts: Facts) -> bool:
        """Whether a group may be so large."""
        return self.items <= facts.max_group and self.local_memory <= facts.local_memory


SMALL_TILE = Tile(64, 32, 4, 4, 32)
"""Those of products that the device has no tile of its own for."""


def tiled(
    tile: Tile,
    regions: Regions,
    matrices: int,
    numbers: Mapping[str, Number],
    *,
    rows: int = 0,
    defines: Mapping[str, int | str] | None = None,
) -> Launch:
    """A group for each tile of the results of `rows` rows, by default those of `x`."""
    columns = rows or regions["x"].ne[1]
    names = ("TILE_N", "TILE_M", "ITEM_N", "ITEM_M", "DEPTH")
    return launch(
        TILE,
        regions,
        groups=(blocks_of(regions["w"].ne[1], tile.n), blocks_of(columns, tile.m), matrices),
        local=(tile.items,),
        defines={
            "GROUP_SIZE": tile.items,
            **dict(zip(names, tile, strict=True)),
            **(defines or {}),
        },
        numbers=numbers,
    )


@lowers("out_prod")
def out_prod(node: Tensor, facts: Facts) -> Program:
    """y[n, m] = sum over k of w[n, k] * x[m, k]."""
    need_product(node)
    regions, numbers = regions_of(OUTER_PRODUCT, node), repeats(*node.sources)
    return Program((per_element(OUTER_PRODUCT, regions, node.size, facts, numbers=numbers),))


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


def repeats(w: Tensor | Region, x: Tensor | Region) -> dict[str, Number]:
    """The numbers REPEATS of a product."""
    repeat2, repeat3 = (x.ne[axis] // max(w.ne[axis], 1) for axis in (2, 3))
    return {"repeat2": repeat2, "repeat3": repeat3}
