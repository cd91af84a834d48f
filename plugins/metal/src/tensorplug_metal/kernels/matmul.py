"""Products of matrices: `mul_mat`, `mul_mat_id`, `out_prod`."""

from tensorplug.tensor import Tensor
from tensorplug_metal.kernels.table import OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import NoKernel, lowers
from tensorplug_simt.own.product import REPEATS, lower_out_prod, need_product, repeats
from tensorplug_simt.program import Kernel, Launch, Program, Region, blocks_of, launch
from tensorplug_simt.source import BYTES

TEXT = "tensorplug_metal:kernels/product.metal"
MATVEC_TEXT = "tensorplug_metal:kernels/matvec.metal"

_WXY, _WXIY, _Y = ("w", "x", "y"), ("w", "x", "ids", "y"), ("y",)

MATVEC = Kernel("matvec", MATVEC_TEXT, _WXIY, _Y, REPEATS, (BYTES,))
ROW_PRODUCT = Kernel("row_product", MATVEC_TEXT, _WXIY, _Y, REPEATS)
TILED_BLOCKS = Kernel("tiled_product", TEXT, _WXY, _Y, REPEATS, (BYTES,))
TILED_PRODUCT = Kernel("tiled_product", TEXT, _WXY, _Y, REPEATS)

FEW_COLUMNS = 8
"""More columns are worth tiles; as many go through weights at once."""
ITEMS = 64
"""Of a group of two simdgroups, each with rows of its own."""
TILE, TILE_ITEMS = (64, 32), 128
"""Results along both sides of a tile, and items of its group."""

lower_out_prod(TEXT, OWN)


@lowers("mul_mat", table=OWN)
def mul_mat(node: Tensor, _facts: Facts) -> Program:
    """y[n, m] = sum over k of w[k, n] * x[k, m]."""
    w, x = node.sources
    need_product(node)
    if x.ne[1] <= FEW_COLUMNS or not _has_rows(w):
        columns = _power(min(max(x.ne[1], 1), FEW_COLUMNS))
        grid = (blocks_of(x.ne[1], columns), node.ne[2] * node.ne[3])
        return Program((_by_rows(node, {"w": w, "x": x, "y": node}, columns, grid, {}),))
    groups = (*map(blocks_of, node.ne[:2], TILE), node.ne[2] * node.ne[3])
    tiled = launch(
        TILED_BLOCKS if w.dtype.is_block else TILED_PRODUCT,
        {"w": w, "x": x, "y": node},
        groups=groups,
        local=(TILE_ITEMS,),
        numbers=repeats(w, x),
    )
    return Program((tiled,))


@lowers("mul_mat_id", table=OWN)
def mul_mat_id(node: Tensor, _facts: Facts) -> Program:
    """y[:, i, t] = w[:, :, ids[i, t]] applied to x[:, i mod ne[1], t]."""
    w, x, ids = node.sources
    need_product(node)
    places: dict[str, Tensor | Region] = {"w": w, "x": x, "ids": ids, "y": node}
    return Program((_by_rows(node, places, 1, (node.ne[1], node.ne[2]), {"EXPERTS": 1}),))


def _has_rows(w: Tensor) -> bool:
    """Whether blocks of a row follow each other; kernels that unpack them take no others."""
    return not w.dtype.is_block or w.nb[0] == w.dtype.size or w.ne[0] == w.dtype.block


def _by_rows(
    node: Tensor,
    places: dict[str, Tensor | Region],
    columns: int,
    grid: tuple[int, int],
    defines: dict[str, int],
) -> Launch:
    """A simdgroup for several rows of weights and all of `columns`."""
    w, x = node.sources[:2]
    if not _has_rows(w):
        raise NoKernel(f"rows of {w} have gaps between blocks")
    rows = 4 if columns <= 2 else 2
    numbers = {"repeat2": 1, "repeat3": 1} if "EXPERTS" in defines else repeats(w, x)
    return launch(
        MATVEC if w.dtype.is_block else ROW_PRODUCT,
        places,
        groups=(blocks_of(w.ne[1], ITEMS // 32 * rows), *grid),
        local=(ITEMS,),
        defines={"ROWS": rows, "COLUMNS": columns, **defines},
        numbers=numbers,
    )


def _power(count: int) -> int:
    """The lowest power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()
