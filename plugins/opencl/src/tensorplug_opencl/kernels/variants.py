"""Ways to compute a product of matrices, which of them are valid, and which one is taken.

Variants are `wide` (processors), `wide_int8` (the same with one row of `x` rounded to 8 bits),
`subgroup` and `group` (a team of lanes for each row, of a sub-group or a group), `int8` (with `x`
rounded to 8 bits) and the tiles. The choice is the first valid one by the facts of the device,
unless its `choices` name another for products of that class.
"""

from tensorplug_opencl.kernels import tiled, wide
from tensorplug_opencl.kernels.operands import Operands, rows_in_order
from tensorplug_simt.facts import Facts
from tensorplug_simt.program import Program

WIDE, WIDE_INT8 = "wide", "wide_int8"
SUBGROUP, GROUP, INT8 = "subgroup", "group", "int8"


def product(these: Operands, facts: Facts) -> Program | None:
    """The program of the variant that is chosen; None where there is none."""
    valid = variants(these, facts)
    chosen = facts.choices.get(class_of(these, facts))
    if chosen not in valid:
        chosen = valid[0] if valid else None
    return program_of(chosen, these, facts) if chosen is not None else None


def few(these: Operands) -> bool:
    """Whether all rows of `x` fit one pass over `w`."""
    return "lists" not in these.experts and these.rows <= tiled.COLUMNS[-1]


def variants(these: Operands, facts: Facts) -> list[str]:
    """The valid variants; the first one is best by facts alone."""
    grouped = _matvecs(these, facts) if few(these) else _tiles(these, facts)
    return _streams(these, facts) + grouped


def _streams(these: Operands, facts: Facts) -> list[str]:
    if not (facts.wide and rows_in_order(these.w)):
        return []
    return [WIDE_INT8, WIDE] if facts.int8_activations and wide.streams(these) else [WIDE]


def _matvecs(these: Operands, facts: Facts) -> list[str]:
    rounded = [INT8] if facts.int8_activations and these.w.dtype in tiled.CODED else []
    return [*rounded, *([SUBGROUP] if facts.subgroup else []), GROUP]


def _tiles(these: Operands, facts: Facts) -> list[str]:
    fitting = [name for name, tile in tiled.TILES.items() if tile.fits(facts)]
    best = tiled.best_tile(these, facts)
    return sorted(fitting, key=lambda name: name != best)


def program_of(variant: str, these: Operands, facts: Facts) -> Program:
    """The program of one variant."""
    if variant in (WIDE, WIDE_INT8):
        return wide.product(these, facts, int8=variant == WIDE_INT8)
    tile = tiled.TILES.get(variant)
    if tile is not None:
        return tiled.tiles(these, tile)
    subgroups = variant == SUBGROUP or (variant == INT8 and facts.subgroup > 0)
    return tiled.rows(these, facts, subgroups=subgroups, int8=variant == INT8)


def class_of(these: Operands, facts: Facts) -> str:
    """What products share a choice: types and sizes rounded up to powers of two."""
    kind = "lists" if "lists" in these.experts else "experts" if these.experts else "matrices"
    sizes = (these.w.ne[0], these.w.ne[1], these.rows, these.matrices)
    shape = "x".join(str(1 << max(size - 1, 0).bit_length()) for size in sizes)
    int8 = " int8" if facts.int8_activations else ""
    return f"{kind} {these.w.dtype.name} {these.x.dtype.name} {shape}{int8}"
