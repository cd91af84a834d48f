"""Products of matrices: `mul_mat`, `mul_mat_id`."""

from tensorplug.device import Group, Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.product import REPEATS, hadamard, need_product, repeats
from tensorplug_simt.grids import power_of_two
from tensorplug_simt.lowering import NoKernel
from tensorplug_simt.own.few import Few, followed, gated, kernels, unfused
from tensorplug_simt.program import Kernel, Launch, Program, Region, blocks_of, launch
from tensorplug_simt.source import BYTES

TEXT = "tensorplug_metal:kernels/product.metal"
MATVEC_TEXT = "tensorplug_metal:kernels/matvec.metal"

MATVEC = kernels("matvec", MATVEC_TEXT, BYTES)
ROW_PRODUCT = kernels("row_product", MATVEC_TEXT)
TILED_BLOCKS = Kernel("tiled_product", TEXT, ("w", "x", "y"), ("y",), REPEATS, (BYTES,))
TILED_PRODUCT = Kernel("tiled_product", TEXT, ("w", "x", "y"), ("y",), REPEATS)

FEW_COLUMNS = 8
"""More columns are worth tiles; up to 8 share one pass over the weights."""
GATED_COLUMNS = 4
"""Columns that share one pass over the weights of two matrices."""
ITEMS = 64
"""Of a group of two simdgroups, each with rows of its own."""
TILE, TILE_ITEMS = (64, 32), 128
"""Results along both sides of a tile, and items of its group."""


def mul_mat(node: Tensor, facts: Facts) -> Program:
    """y[n, m] = sum over k of w[k, n] * x[k, m]."""
    w, x = node.sources
    need_product(node)
    if transform := hadamard(node, facts):
        return transform
    if x.ne[1] <= FEW_COLUMNS or not _has_rows(w):
        return Program((_by_rows(unfused(node)),))
    groups = (*map(blocks_of, node.ne[:2], TILE), node.ne[2] * node.ne[3])
    tiled = launch(
        TILED_BLOCKS if w.dtype.is_block else TILED_PRODUCT,
        {"w": w, "x": x, "y": node},
        groups=groups,
        local=(TILE_ITEMS,),
        numbers=repeats(w, x),
    )
    return Program((tiled,))


def mul_mat_id(node: Tensor, _facts: Facts) -> Program:
    """y[:, i, t] = w[:, :, ids[i, t]] applied to x[:, i mod ne[1], t]."""
    need_product(node)
    return Program((_by_rows(unfused(node)),))


def follow(group: Group, _facts: Facts) -> Program:
    """A product with its scale, its bias or both, for all or for each expert."""
    return Program((_by_rows(followed(group)),))


def gate(group: Group, _facts: Facts) -> Program:
    """Two products of the same columns, one of them activated, times each other."""
    return Program((_by_rows(gated(group)),))


def _has_rows(w: Tensor) -> bool:
    """Whether blocks of a row follow each other; kernels that unpack them take no others."""
    return not w.dtype.is_block or w.nb[0] == w.dtype.size or w.ne[0] == w.dtype.block


def _by_rows(made: Few) -> Launch:
    """A simdgroup for several rows of weights and all columns, or one column of each expert."""
    product, more = made.product, made.more
    w, x = product.sources[:2]
    for weights in (w, more.get("w2", w)):
        if not _has_rows(weights):
            raise NoKernel(f"rows of {weights} have gaps between blocks")
    regions: dict[str, Tensor | Region] = {"w": w, "x": x, **more, "y": made.y}
    numbers: dict[str, int | float] = {"repeat2": 1, "repeat3": 1}
    defines = dict(made.defines)
    if product.op == "mul_mat_id":
        regions["ids"], columns, defines["EXPERTS"] = product.sources[2], 1, 1
        grid = (product.ne[1], product.ne[2])
    else:
        if more and x.ne[1] > FEW_COLUMNS:
            raise NoKernel("many columns, which go through in tiles")
        most = GATED_COLUMNS if "w2" in more else FEW_COLUMNS
        columns, numbers = power_of_two(min(max(x.ne[1], 1), most)), repeats(w, product)
        grid = (blocks_of(x.ne[1], columns), product.ne[2] * product.ne[3])
    rows = 4 if columns <= 2 and "w2" not in more else 2
    return launch(
        (MATVEC if w.dtype.is_block else ROW_PRODUCT).of(made),
        regions,
        groups=(blocks_of(w.ne[1], ITEMS // 32 * rows), *grid),
        local=(ITEMS,),
        defines={**defines, "ROWS": rows, "COLUMNS": columns},
        numbers=numbers | (made.numbers if more else {}),
    )
