"""Products with many columns by tensor cores, in f16 or bf16."""

from tensorplug.device import Tensor
from tensorplug.dtypes import F32
from tensorplug_cuda.kernels import cores
from tensorplug_cuda.kernels.columns import TEXT
from tensorplug_cuda.kernels.experts import MMA_TEXT, SIDE
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.copying import copies
from tensorplug_simt.families.product import REPEATS, may_round, repeats
from tensorplug_simt.program import (
    Kernel,
    Launch,
    Program,
    Region,
    blocks_of,
    launch,
    region,
    scratch,
)

MMA_PRODUCT = Kernel(
    "mma_product", MMA_TEXT, ("w", "x", "y"), ("y",), REPEATS, (TEXT, *cores.CORES)
)
NARROW, LARGE, LARGE_ITEMS = 32, 128, 256
"""Columns of tiles for few; rows and columns of large tiles, and items of a group for one."""
MOST_ROOM = 2**28
"""Scratch bytes for sides that are converted before; larger ones are converted in each tile."""


def takes(node: Tensor, facts: Facts) -> bool:
    """Whether tensor cores compute a product with elements and many columns."""
    large = 2 * node.sources[0].ne[0] * node.size >= facts.halves_from
    return large and cores.fit(node.sources[0].dtype) and may_round(node)


def by_tensor_cores(node: Tensor, facts: Facts) -> Program:
    """The program of a `mul_mat` that fits.

    Both sides are rounded to `factor_type`; columns of large tiles before, since every row of tiles
    reads them.
    """
    w, x = (region(source) for source in node.sources)
    rounded = scratch(cores.factor_type(w.dtype), x.ne)
    launches: list[Launch] = []
    large = _width(node, facts) == LARGE
    if large and x.dtype is F32 and rounded.nbytes <= MOST_ROOM:
        launches += copies(x, rounded, facts)
        x = rounded
    multiply = product(MMA_PRODUCT, w, x, node, facts)
    return Program((*launches, multiply), scratch=rounded.nbytes if launches else 0)


def product(kernel: Kernel, w: Region, x: Region, node: Tensor, facts: Facts) -> Launch:
    """The launch of a product of `w` and `x`, which are the sources of `node` in some type."""
    width = _width(node, facts)
    side = LARGE if width == LARGE else SIDE
    return launch(
        kernel,
        {"w": w, "x": x, "y": node},
        groups=(blocks_of(w.ne[1], side), blocks_of(x.ne[1], width), node.ne[2] * node.ne[3]),
        local=(LARGE_ITEMS if width == LARGE else cores.ITEMS,),
        defines={**cores.defines(cores.factor_type(w.dtype)), "WIDTH": width},
        numbers=repeats(*node.sources),
    )


def _width(node: Tensor, facts: Facts) -> int:
    """Columns of a tile. Large ones read half as much, where they are enough for all units."""
    rows, columns, *matrices = node.ne
    if columns <= NARROW:
        return NARROW
    large = blocks_of(rows, LARGE) * blocks_of(columns, LARGE) * matrices[0] * matrices[1]
    return LARGE if min(rows, columns) > SIDE and large >= facts.units else SIDE
