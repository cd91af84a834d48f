"""Products of experts for prompts: rows sorted by expert on the device, then multiplied in tiles.

No count comes back to the host: the grid has room for the tiles of every choice of experts.
"""

from dataclasses import replace

from tensorplug.device import Tensor
from tensorplug.dtypes import I32
from tensorplug_cuda.kernels import cores
from tensorplug_simt.facts import Facts
from tensorplug_simt.program import Kernel, Program, Region, blocks_of, launch, scratch

TEXT = "tensorplug_cuda:kernels/product.cu"
SORTED = Kernel(
    "sorted_by_expert",
    TEXT,
    ("ids", "rows", "tiles"),
    ("rows", "tiles"),
    (("experts", "int"),),
    reusable=True,
)
TILES = Kernel("expert_tiles", TEXT, ("w", "x", "rows", "tiles", "y"), ("y",))
MMA_TEXT = "tensorplug_cuda:kernels/mma.cu"
MMA_TILES = replace(TILES, name="mma_experts", text=MMA_TEXT, parts=(TEXT, *cores.CORES))

SIDE, TILE_ITEMS = 64, 256
"""Rows of weights of a tile, and items of its group."""
WIDTHS = (16, 32, 64)
"""Rows of x of a tile."""
ITEMS = 128
"""Items of a group that looks for an expert's rows."""
SHARED_BY = 2
"""Rows for each expert, on average, from which on they share the reading of its weights."""
RECORD = 4
"""Integers that say what a tile has: expert, first row, number of rows, nothing."""


def are_many(node: Tensor) -> bool:
    """Whether experts have enough rows on average for tiles to pay off."""
    return node.ne[1] * node.ne[2] >= SHARED_BY * node.sources[0].ne[2]


def tiles(node: Tensor, _facts: Facts) -> Program:
    """The program of a `mul_mat_id` that has elements, in f32."""
    return _by_expert(node, TILES, TILE_ITEMS, {})


def by_tensor_cores(node: Tensor, _facts: Facts) -> Program:
    """The same by tensor cores, as they multiply other matrices."""
    kind = cores.factor_type(node.sources[0].dtype)
    return _by_expert(node, MMA_TILES, cores.ITEMS, cores.defines(kind))


def _by_expert(node: Tensor, kernel: Kernel, items: int, defines: dict[str, int]) -> Program:
    w, x, ids = node.sources
    count, experts = node.ne[1] * node.ne[2], w.ne[2]
    width = next((n for n in WIDTHS if n * experts >= count), WIDTHS[-1])
    rows = _integers(count, 1)
    found = _integers(RECORD, count // width + experts + 1, 128 * blocks_of(rows.nbytes, 128))
    sort = launch(
        SORTED,
        {"ids": ids, "rows": rows, "tiles": found},
        groups=(experts + 1,),
        local=(ITEMS,),
        defines={"WIDTH": width, "GROUP_SIZE": ITEMS},
        experts=experts,
    )
    multiply = launch(
        kernel,
        {"w": w, "x": x, "rows": rows, "tiles": found, "y": node},
        groups=(blocks_of(w.ne[1], SIDE), found.ne[1]),
        local=(items,),
        defines={**defines, "WIDTH": width},
    )
    return Program((sort, multiply), scratch=found.offset + found.nbytes)


def _integers(length: int, rows: int, offset: int = 0) -> Region:
    """Scratch memory for rows of integers."""
    return scratch(I32, (length, rows, 1, 1), offset)
