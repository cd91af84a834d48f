"""How elements get from one layout to another: the launches that suit two regions."""

from collections.abc import Iterable
from dataclasses import replace
from math import gcd, prod

from tensorplug.device import contiguous_nb
from tensorplug.dtypes import F64, I8, I16, I32, I64, INTEGERS, DType
from tensorplug.graph.tensor import Ne
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element, per_row
from tensorplug_simt.program import Kernel, Launch, Region, blocks_of, launch

TEXT = "tensorplug_simt:kernels/copy.k"

_XY, _Y = ("x", "y"), ("y",)
BYTES = Kernel("copied_bytes", TEXT, _XY, _Y, (("count", "uint"), ("rest", "int")), reusable=True)
FLAT = Kernel("copied_flat", TEXT, _XY, _Y, (("count", "uint"),), reusable=True)
ROWS = Kernel("copied_rows", TEXT, _XY, _Y, (("parts", "int"),), reusable=True)
TILES = Kernel("copied_tiles", TEXT, _XY, _Y, reusable=True)
ANY = Kernel("copied", TEXT, _XY, _Y, (("count", "uint"),), reusable=True)

UNITS: dict[int, DType] = {1: I8, 2: I16, 4: I32, 8: I64}
TILE_TYPES: dict[DType, str] = {I8: "char", I16: "short", I32: "int", I64: "long"}
"""Integers that stand for units of 1, 2, 4 and 8 bytes, and their names in kernels."""

PART = 2048
"""Elements of a row that one group copies: long rows keep several busy."""
LONG_ROW = 32
"""Rows of fewer elements are not worth a group each."""
SIDE = 32
"""Elements along each side of a tile."""


def units(memory: Region) -> Region:
    """The same bytes as integers; blocks as several of them, at most of four bytes each."""
    dtype = memory.dtype
    if not dtype.is_block:
        return replace(memory, dtype=UNITS[dtype.size])
    size = gcd(dtype.size, 4)
    row = dtype.row_size(memory.ne[0]) // size
    return replace(memory, dtype=UNITS[size], ne=(row, *memory.ne[1:]), nb=(size, *memory.nb[1:]))


def is_contiguous(memory: Region) -> bool:
    """Whether the elements of a region lie in order without gaps."""
    wanted = contiguous_nb(memory.dtype, memory.ne)
    return all(n == 1 or b == w for n, b, w in zip(memory.ne, memory.nb, wanted, strict=True))


def reshaped(memory: Region, ne: Ne) -> Region | None:
    """A contiguous region with other sizes; None where there are gaps or blocks would be cut."""
    if not is_contiguous(memory) or ne[0] % memory.dtype.block:
        return None
    return replace(memory, ne=ne, nb=contiguous_nb(memory.dtype, ne))


def _through_integers(x: DType, y: DType) -> bool:
    """Whether elements are copied without f32 in between: equal types, or integers and f64."""
    return x is y or (not x.is_block and {x, y} <= INTEGERS | {F64})


def copies(x: Region, y: Region, facts: Facts) -> tuple[Launch, ...]:
    """Launches that copy `x` to `y`, equal in size; blocks lie in `x`, in both or in neither.

    Equal types keep their bits.
    """
    if 0 in y.ne:
        return ()
    raw = x.dtype is y.dtype
    if raw:
        x, y = units(x), units(y)
    if x.ne != y.ne:
        same = reshaped(x, y.ne)
        x, y = (same, y) if same is not None else (x, reshaped(y, x.ne) or y)
    defines: dict[str, int | str] = {"RAW": 1} if _through_integers(x.dtype, y.dtype) else {}
    if x.ne != y.ne:
        defines["RESHAPED"] = 1
        return (per_element(ANY, {"x": x, "y": y}, prod(y.ne), facts, defines=defines),)
    if x.dtype.is_block:
        return (row_copies(x, y, facts, defines),)
    x, y = merged(x, y)
    return (_alike(x, y, facts, defines, raw=raw),)


def merged(x: Region, y: Region) -> tuple[Region, Region]:
    """Two regions of one shape with as few dimensions as their strides allow."""
    sides = [side for side in zip(x.ne, x.nb, y.nb, strict=True) if side[0] > 1]
    kept: list[tuple[int, int, int]] = sides[:1] or [(1, x.dtype.size, y.dtype.size)]
    for n, a, b in sides[1:]:
        size, below, under = kept[-1]
        if (a, b) == (size * below, size * under):
            kept[-1] = (size * n, below, under)
        else:
            kept.append((n, a, b))
    return _with_sides(x, y, kept)


def _with_sides(
    x: Region, y: Region, sides: Iterable[tuple[int, int, int]]
) -> tuple[Region, Region]:
    filled = [*sides, *[(1, 0, 0)] * 4][:4]
    (n0, a0, b0), (n1, a1, b1), (n2, a2, b2), (n3, a3, b3) = filled
    ne = (n0, n1, n2, n3)
    return replace(x, ne=ne, nb=(a0, a1, a2, a3)), replace(y, ne=ne, nb=(b0, b1, b2, b3))


def _alike(
    x: Region, y: Region, facts: Facts, defines: dict[str, int | str], *, raw: bool
) -> Launch:
    """One launch for two regions of one shape, merged."""
    regions = {"x": x, "y": y}
    starts = x.nb[0] == x.dtype.size, y.nb[0] == y.dtype.size
    if all(starts) and y.ne[1:] == (1, 1, 1):
        return _flat(regions, y, facts, defines, raw=raw)
    if all(starts) and y.ne[0] >= LONG_ROW:
        return row_copies(x, y, facts, defines)
    across = [i for i in (1, 2, 3) if x.nb[i] == x.dtype.size and y.ne[i] >= 8]
    if starts[1] and across and y.ne[0] >= 8:
        return _tiles(*_turned(x, y, across[0]), facts, defines)
    if y.ne[0] >= LONG_ROW:
        return row_copies(x, y, facts, {**defines, "STEPS": 1})
    return per_element(ANY, regions, prod(y.ne), facts, defines=defines)


def _flat(
    regions: dict[str, Region], y: Region, facts: Facts, defines: dict[str, int | str], *, raw: bool
) -> Launch:
    if not raw:
        return per_element(FLAT, regions, y.ne[0], facts, defines=defines)
    count, rest = divmod(y.ne[0] * y.dtype.size, 16)
    size = facts.flat_group
    types = {"x": I8, "y": I8}
    groups = (blocks_of(count + 1, size),)
    return launch(
        BYTES, regions, groups=groups, local=(size,), types=types, defines={"RAW": 1},
        count=count, rest=rest,
    )  # fmt: skip


def row_copies(x: Region, y: Region, facts: Facts, defines: dict[str, int | str]) -> Launch:
    """Groups for rows, with gaps where STEPS is defined; `x` comes round where `y` has more."""
    parts = blocks_of(y.ne[0], PART)
    grid = (y.ne[1] * parts, y.ne[2], y.ne[3])
    defines = {**defines, "PART": PART}
    return per_row(ROWS, {"x": x, "y": y}, grid, facts, defines=defines, parts=parts)


def _turned(x: Region, y: Region, dim: int) -> tuple[Region, Region]:
    """Dimensions 1 and `dim` exchanged in both, which changes nothing for a copy."""
    sides = list(zip(x.ne, x.nb, y.nb, strict=True))
    sides[1], sides[dim] = sides[dim], sides[1]
    return _with_sides(x, y, sides)


def _tiles(x: Region, y: Region, facts: Facts, defines: dict[str, int | str]) -> Launch:
    size = 1 if facts.wide else facts.flat_group
    groups = (blocks_of(y.ne[0], SIDE), blocks_of(y.ne[1], SIDE), y.ne[2] * y.ne[3])
    defines = {**defines, "GROUP_SIZE": size, "SIDE": SIDE}
    if "RAW" in defines:
        defines["TILE_TYPE"] = TILE_TYPES[UNITS[x.dtype.size]]
    return launch(TILES, {"x": x, "y": y}, groups=groups, local=(size,), defines=defines)
