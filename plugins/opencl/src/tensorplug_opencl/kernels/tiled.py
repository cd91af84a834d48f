"""Products of matrices on GPUs: groups share rows."""

from tensorplug_opencl.kernels.operands import Operands
from tensorplug_simt.facts import Facts
from tensorplug_simt.program import Kernel, Launch, Program, blocks_of, launch

TEXT = "tensorplug_opencl:kernels/tiled.cl"
REPEATS = (("repeat2", "int"), ("repeat3", "int"))

ROW_PRODUCT = Kernel("row_product", TEXT, ("w", "x", "ids", "y"), ("y",), REPEATS)
TILE_PRODUCT = Kernel("tile_product", TEXT, ("w", "x", "lists", "y"), ("y",), REPEATS)

COLUMNS = (1, 2, 4, 8)
"""How many rows of `x` may meet a row of `w` at once."""
GROUP = 64
"""Items that share a row."""
TILE = 64
"""Rows and columns of the results of a group."""
TILE_GROUP = 256
"""Items that share a tile: each has 4 x 4 of it."""


def product(these: Operands, facts: Facts) -> Program:
    """A group for each row of `w` for few rows of `x`, tiles for many."""
    many = "lists" in these.experts or these.rows > COLUMNS[-1]
    return these.program(tiles(these) if many else rows(these, facts))


def can_tile(facts: Facts) -> bool:
    """Whether groups are large enough for tiles."""
    return facts.max_group >= TILE_GROUP


def rows(these: Operands, facts: Facts) -> Launch:
    """A group for each row of `w`."""
    size = min(GROUP, facts.row_group)
    columns = next(c for c in COLUMNS if c >= these.rows)
    return launch(
        ROW_PRODUCT,
        these.places,
        groups=(these.w.ne[1], 1, these.matrices),
        local=(size,),
        defines={"GROUP_SIZE": size, "COLS": columns, **these.defines},
        repeat2=these.repeat2,
        repeat3=these.repeat3,
    )


def tiles(these: Operands) -> Launch:
    """A group for each tile of results."""
    groups = (blocks_of(these.w.ne[1], TILE), blocks_of(these.rows, TILE), these.matrices)
    return launch(
        TILE_PRODUCT,
        these.places,
        groups=groups,
        local=(TILE_GROUP,),
        defines=these.defines,
        repeat2=these.repeat2,
        repeat3=these.repeat3,
    )
