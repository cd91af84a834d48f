"""Products of matrices on GPUs: lanes share rows, groups share tiles."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from tensorplug_opencl.kernels.operands import ROWS_OF, Operands, packed, quantised
from tensorplug_simt.facts import Facts
from tensorplug_simt.program import Kernel, Launch, Program, blocks_of, launch
from tensorplug_simt.source import BYTES

TEXT = "tensorplug_opencl:kernels/tiled.cl"
REPEATS = (("repeat2", "int"), ("repeat3", "int"))
PARTS = (*ROWS_OF, BYTES)

ROW_PRODUCT = Kernel("row_product", TEXT, ("w", "x", "ids", "y"), ("y",), REPEATS, PARTS)
TILE_PRODUCT = Kernel("tile_product", TEXT, ("w", "x", "lists", "y"), ("y",), REPEATS, PARTS)

COLUMNS = (1, 2, 4, 8)
"""How many rows of `x` may meet a row of `w` at once."""
ROWS = 2
"""Rows of `w` that a team takes at once."""
TEAMS = 4
"""Sub-groups of a group."""
GROUP = 64
"""Items of a group that is a team."""

PART = 32
"""Elements of a block that are read at once, as deep as a tile of them is."""


class Tile(NamedTuple):
    """Sizes of a tile and of an item's share of it, and how deep it is."""

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
        """Bytes of local memory, at most."""
        return ((self.n + 1) * PART + (self.m + 1) * self.depth) * 4

    def fits(self, facts: Facts) -> bool:
        """Whether a group may be so large."""
        return self.items <= facts.max_group and self.local_memory <= facts.local_memory

    def count(self, these: Operands) -> int:
        """Groups that cover a product."""
        each = blocks_of(these.w.ne[1], self.n) * blocks_of(these.rows, self.m)
        return each * these.matrices


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
        if full and tile.fits(facts) and tile.count(these) >= 2 * facts.units:
            return name
    return tuple(TILES)[-1]


def tiles(these: Operands, tile: Tile) -> Program:
    """A group for each tile of results."""
    product = launch(
        TILE_PRODUCT,
        these.places,
        groups=(blocks_of(these.w.ne[1], tile.n), blocks_of(these.rows, tile.m), these.matrices),
        local=(tile.items,),
        defines={
            "TILE_N": tile.n,
            "TILE_M": tile.m,
            "ITEM_N": tile.item_n,
            "ITEM_M": tile.item_m,
            "DEPTH": tile.depth,
            **these.defines,
        },
        repeat2=these.repeat2,
        repeat3=these.repeat3,
    )
    return these.program(product)


def rows(these: Operands, facts: Facts, *, subgroups: bool, int8: bool = False) -> Program:
    """A team of lanes for neighbouring rows of `w`: a sub-group, or a group."""
    ready = quantised(these, facts) if int8 else packed(these, facts)
    team = _subgroups(facts) if subgroups else _group(facts)
    defines: dict[str, int | str] = {
        "ROWS": ROWS,
        "COLS": next(c for c in COLUMNS if c >= these.rows),
        **team.defines,
        **these.defines,
    }
    w = these.w
    if not w.dtype.is_block and w.nb[0] != w.dtype.size:
        defines["APART"] = 1
    if int8:
        defines["INT8"] = 1
        if facts.int_dot:
            defines["DOT"] = 1
    return ready.program(_rows(ready, team, defines))


def _rows(ready: Operands, team: "Team", defines: dict[str, int | str]) -> Launch:
    return launch(
        ROW_PRODUCT,
        ready.places,
        groups=(blocks_of(ready.w.ne[1], team.rows), 1, ready.matrices),
        local=(team.items,),
        defines=defines,
        repeat2=ready.repeat2,
        repeat3=ready.repeat3,
    )


class Team(NamedTuple):
    """Items of a group, the rows that they take, and what the kernel is told of them."""

    items: int
    rows: int
    defines: dict[str, int | str]


def _subgroups(facts: Facts) -> Team:
    """Several sub-groups. The kernel asks for their real size where none can be required."""
    defines: dict[str, int | str] = {"SUBGROUP": 1, "GROUP_ROWS": TEAMS * ROWS}
    if facts.subgroup_required:
        defines["REQUIRED_SUBGROUP"] = facts.subgroup
    return Team(min(TEAMS * facts.subgroup, facts.max_group), TEAMS * ROWS, defines)


def _group(facts: Facts) -> Team:
    size = min(GROUP, facts.row_group)
    return Team(size, ROWS, {"GROUP_SIZE": size, "GROUP_ROWS": ROWS})
