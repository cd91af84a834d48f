"""Products of matrices on GPUs: lanes share rows, groups share tiles of the shared kernel."""

from collections.abc import Mapping
from types import MappingProxyType

from tensorplug_opencl.kernels.operands import Operands, packed, quantised
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.product import REPEATS, ROWS_OF, Tile, tiled
from tensorplug_simt.program import Kernel, Program, blocks_of, launch
from tensorplug_simt.source import BYTES

TEXT = "tensorplug_opencl:kernels/teams.cl"
PARTS = (ROWS_OF, BYTES)

ROW_PRODUCT = Kernel("row_product", TEXT, ("w", "x", "ids", "y"), ("y",), REPEATS, PARTS)

COLUMNS = (1, 2, 4, 8)
"""How many rows of `x` may meet a row of `w` at once."""
ROWS = 2
"""Rows of `w` that a team takes at once."""
TEAMS = 4
"""Sub-groups of a group."""
GROUP = 64
"""Items of a group that is a team."""


TILES: Mapping[str, Tile] = MappingProxyType(
    {
        "tile128x128": Tile(128, 128, 8, 8),
        "tile128x64": Tile(128, 64, 8, 4),
        "tile64x64": Tile(64, 64, 4, 4),
        "tile64x32": Tile(64, 32, 8, 4),
    }
)
"""By name, the largest first."""


def best_tile(these: Operands, facts: Facts) -> str:
    """The largest tile that gives every unit two groups and is half full; else the smallest."""
    for name, tile in TILES.items():
        full = tile.n < 2 * these.w.ne[1] and tile.m < 2 * these.rows
        groups = blocks_of(these.w.ne[1], tile.n) * blocks_of(these.rows, tile.m) * these.matrices
        if full and tile.fits(facts) and groups >= 2 * facts.units:
            return name
    return tuple(TILES)[-1]


def tiles(these: Operands, tile: Tile) -> Program:
    """A group for each tile of results."""
    rows, defines = these.rows, these.defines
    return these.program(
        tiled(tile, these.regions, these.matrices, these.repeats, rows=rows, defines=defines)
    )


def rows(these: Operands, facts: Facts, *, subgroups: bool, int8: bool = False) -> Program:
    """A team of lanes for neighbouring rows of `w`: one of several sub-groups, or a group.

    Sub-groups are asked for their real size where none can be required.
    """
    ready = quantised(these, facts) if int8 else packed(these, facts)
    teams = TEAMS if subgroups else 1
    items = (
        min(teams * facts.subgroup, facts.max_group) if subgroups else min(GROUP, facts.row_group)
    )
    w, required = these.w, subgroups and facts.subgroup_required
    settings = {
        "SUBGROUP": subgroups,
        "REQUIRED_SUBGROUP": facts.subgroup if required else 0,
        "GROUP_SIZE": 0 if subgroups else items,
        "APART": not w.dtype.is_block and w.nb[0] != w.dtype.size,
        "INT8": int8,
        "DOT": int8 and facts.int_dot,
    }
    product = launch(
        ROW_PRODUCT,
        ready.regions,
        groups=(blocks_of(w.ne[1], teams * ROWS), 1, ready.matrices),
        local=(items,),
        defines={
            "ROWS": ROWS,
            "COLS": next(c for c in COLUMNS if c >= these.rows),
            "GROUP_ROWS": teams * ROWS,
            **{name: int(value) for name, value in settings.items() if value},
            **these.defines,
        },
        numbers=ready.repeats,
    )
    return ready.program(product)
