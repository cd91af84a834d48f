"""Products of matrices: `mul_mat`, `mul_mat_id`, `out_prod`."""

from tensorplug.dtypes import I32
from tensorplug.tensor import Tensor
from tensorplug_cuda.kernels import experts
from tensorplug_cuda.kernels.table import OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import lowers
from tensorplug_simt.own.product import (
    COUNT,
    REPEATS,
    expert_kernel,
    expert_product,
    lower_out_prod,
    need_product,
    product,
    product_kernel,
    repeats,
)
from tensorplug_simt.program import Kernel, Launch, Program, Region, blocks_of, launch, scratch
from tensorplug_simt.source import BYTES

TEXT = "tensorplug_cuda:kernels/product.cu"
MATVEC_TEXT = "tensorplug_cuda:kernels/matvec.cu"

_WXY, _Y = ("w", "x", "y"), ("y",)

PRODUCT = product_kernel(TEXT)
EXPERT_PRODUCT = expert_kernel(TEXT)
WARP_PRODUCT = Kernel("warp_product", TEXT, ("w", "x", "ids", "y"), _Y, REPEATS)
TILED_PRODUCT = Kernel("tiled_product", TEXT, _WXY, _Y, REPEATS)
ROUNDED = Kernel("rounded", MATVEC_TEXT, ("x", "y"), _Y, COUNT)
MATVEC = Kernel("matvec", MATVEC_TEXT, ("w", "x", "ids", "y"), _Y, REPEATS, (BYTES,))

ITEMS = 128
"""Of a group that has a warp, or a part of one, for each row of weights."""
COLUMNS = 8
"""Columns that one pass over weights serves at most."""
FEW_COLUMNS = 16
"""More columns are worth tiles."""
SIDE, TILE_ITEMS = 64, 256
"""Results along both sides of a tile, and items of its group."""
STEP = 32
"""Elements with a scale of their own in a rounded column."""

lower_out_prod(TEXT, OWN)


@lowers("mul_mat", table=OWN)
def mul_mat(node: Tensor, facts: Facts) -> Program:
    """y[n, m] = sum over k of w[k, n] * x[k, m]."""
    w, x = node.sources
    need_product(node)
    if not (w.size and x.size and node.size):
        return product(PRODUCT, node, facts)
    if x.ne[1] <= FEW_COLUMNS:
        return _few(node, facts)
    groups = (blocks_of(w.ne[1], SIDE), blocks_of(x.ne[1], SIDE), node.ne[2] * node.ne[3])
    tiled = launch(
        TILED_PRODUCT,
        {"w": w, "x": x, "y": node},
        groups=groups,
        local=(TILE_ITEMS,),
        numbers=repeats(w, x),
    )
    return Program((tiled,))


@lowers("mul_mat_id", table=OWN)
def mul_mat_id(node: Tensor, facts: Facts) -> Program:
    """y[:, i, t] = w[:, :, ids[i, t]] applied to x[:, i mod ne[1], t]."""
    w, x = node.sources[:2]
    need_product(node)
    if w.size and x.size and node.size:
        if experts.are_many(node):
            return experts.tiles(node)
        return _few(node, facts)
    return expert_product(EXPERT_PRODUCT, node, facts)


def _is_bytewise(w: Tensor, facts: Facts) -> bool:
    """Whether rows of `w` are multiplied with columns that are rounded to bytes."""
    rows_in_order = w.nb[0] == w.dtype.size or w.ne[0] == w.dtype.block
    allowed = facts.int_dot and facts.int8_activations
    return w.dtype.is_block and allowed and rows_in_order


def _few(node: Tensor, facts: Facts) -> Program:
    """A product with few columns, for which weights go through once for some of them."""
    if _is_bytewise(node.sources[0], facts):
        return _matvec(node, facts)
    return Program((_by_columns(WARP_PRODUCT, node, node.sources[1], ITEMS // 32, {}),))


def _matvec(node: Tensor, facts: Facts) -> Program:
    """Columns are rounded first, then weights go through once for `COLUMNS` of them."""
    w, x = node.sources[:2]
    codes = _codes(x)
    count = x.size // STEP
    together = facts.flat_group // STEP
    rounded = launch(
        ROUNDED,
        {"x": x, "y": codes},
        groups=(blocks_of(count, together),),
        local=(facts.flat_group,),
        count=count,
    )
    lanes = _lanes(w.ne[0])
    multiplied = _by_columns(MATVEC, node, codes, ITEMS // lanes, {"LANES": lanes})
    return Program((rounded, multiplied), scratch=codes.nbytes)


def _by_columns(
    kernel: Kernel, node: Tensor, x: Tensor | Region, rows: int, defines: dict[str, int | str]
) -> Launch:
    """A group for `rows` rows of weights and some columns of `x`, or one column of each expert."""
    w = node.sources[0]
    places: dict[str, Tensor | Region] = {"w": w, "x": x, "y": node}
    numbers: dict[str, int | float] = {"repeat2": 1, "repeat3": 1}
    if node.op == "mul_mat_id":
        places["ids"], columns, defines = node.sources[2], 1, {**defines, "EXPERTS": 1}
        grid = (node.ne[1], node.ne[2])
    else:
        columns, numbers = _power(min(x.ne[1], COLUMNS)), repeats(w, node)
        grid = (blocks_of(x.ne[1], columns), node.ne[2] * node.ne[3])
    return launch(
        kernel,
        places,
        groups=(blocks_of(w.ne[1], rows), *grid),
        local=(ITEMS,),
        defines={**defines, "COLUMNS": columns},
        numbers=numbers,
    )


def _codes(x: Tensor) -> Region:
    """Scratch memory for rounded columns: a byte for each element, 8 for each 32 of them."""
    words = blocks_of(x.ne[0] + x.ne[0] // STEP * 8, 16) * 4
    row = words * I32.size
    nb = (I32.size, row, row * x.ne[1], row * x.ne[1] * x.ne[2])
    return scratch(I32, (words, *x.ne[1:]), nb)


def _lanes(length: int) -> int:
    """Items for each row: fewer where rows are so short that many would have nothing to do."""
    parts = length // STEP
    return 32 if parts >= 4 * 32 else 16 if parts >= 2 * 16 else 8


def _power(count: int) -> int:
    """The lowest power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()
