"""Ways to compute a product of matrices, which of them are valid, and which one is taken.

Variants are `wide` (processors), `wide_int8` (the same with `x` rounded to 8 bits), `subgroup` and
`group` (a team of lanes for each row, of a sub-group or a group), `int8` (with `x` rounded to 8
bits) and the tiles. The choice is the first valid one by the facts of the device, unless they name
a `variant` that is valid.
"""

from tensorplug_opencl.kernels import tiled, wide
from tensorplug_opencl.kernels.operands import Operands, rows_in_order
from tensorplug_simt.facts import Facts
from tensorplug_simt.program import Program

WIDE, WIDE_INT8 = "wide", "wide_int8"
SUBGROUP, GROUP, INT8 = "subgroup", "group", "int8"
VARIANTS = (WIDE, WIDE_INT8, SUBGROUP, GROUP, INT8, *tiled.TILES)
"""All names."""
ROUNDING = (WIDE_INT8, INT8)
"""Those that round `x` to bytes."""


def product(these: Operands, facts: Facts) -> Program | None:
    """The program of the variant that is chosen; None where there is none."""
    variant = chosen(these, facts)
    return None if variant is None else program_of(variant, these, facts)


def chosen(these: Operands, facts: Facts) -> str | None:
    """The first valid variant, or the one that the facts name if it is valid."""
    valid = variants(these, facts)
    return facts.variant if facts.variant in valid else next(iter(valid), None)


def few(these: Operands) -> bool:
    """Whether all rows of `x` fit one pass over `w`."""
    return "lists" not in these.experts and these.rows <= tiled.COLUMNS[-1]


def variants(these: Operands, facts: Facts) -> list[str]:
    """The valid variants; by the facts of the device the first one is best."""
    grouped = _matvecs(these, facts) if few(these) else _tiles(these, facts)
    return _streams(these, facts) + grouped


def _streams(these: Operands, facts: Facts) -> list[str]:
    if not (facts.wide and rows_in_order(these.w)):
        return []
    return [WIDE_INT8, WIDE] if facts.int8_activations and wide.takes_bytes(these) else [WIDE]


def _matvecs(these: Operands, facts: Facts) -> list[str]:
    rounded = [INT8] if facts.int8_activations and these.w.dtype.is_block else []
    return [*rounded, *([SUBGROUP] if facts.subgroup else []), GROUP]


def _tiles(these: Operands, facts: Facts) -> list[str]:
    if these.w.dtype.is_block and not rows_in_order(these.w):
        return []
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
