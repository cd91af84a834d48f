"""Gradients of attention."""

from typing import Any

from tensorplug.device import Tensor
from tensorplug.dtypes import F32
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element
from tensorplug_simt.lowering import NoKernel, lowers, need_types
from tensorplug_simt.program import Kernel, Program, Region, blocks_of, scratch

TEXT = "tensorplug_simt:kernels/attention_back.k"
LARGEST = 512
"""The largest head that an item can hold."""
UNIT = 4
"""Each of the gradients starts at a multiple of 4 elements."""

_NUMBERS = (("count", "uint"), ("scale", "float"), ("masked", "int"))
_SOURCES = ("q", "k", "v", "grad")
ROWS = Kernel("attend_back_rows", TEXT, (*_SOURCES, "known", "y"), ("known", "y"), _NUMBERS)
COLUMNS = Kernel("attend_back_columns", TEXT, (*_SOURCES, "known", "y", "z"), ("y", "z"), _NUMBERS)


@lowers("flash_attn_back")
def flash_attn_back(node: Tensor, facts: Facts) -> Program:
    """`ROWS` gives gradients of queries, and what `COLUMNS` needs for those of keys and values."""
    need_types(node, frozenset({F32}))
    q, k, v, _ = node.sources
    size, width = q.ne[0], v.ne[1]
    if not 0 < width <= LARGEST or size > LARGEST:
        raise NoKernel(f"heads of {size} and {width} elements; kernels take 1 to {LARGEST}")
    sources: dict[str, Tensor | Region] = dict(zip(_SOURCES, node.sources, strict=True))
    rows = q.ne[1] * q.ne[2] * q.ne[3]
    known = scratch(F32, (3, rows, 1, 1))
    first, second, third = (blocks_of(t.size, UNIT) * UNIT for t in (q, k, v))
    parts = [_part(node, first, 0), _part(node, second, first), _part(node, third, first + second)]
    options: dict[str, Any] = {
        "defines": {"DK": size, "DV": width},
        "scale": size**-0.5,
        "masked": int(bool(node.params["masked"])),
    }
    by_row = {**sources, "known": known, "y": parts[0]}
    by_column = {**sources, "known": known, "y": parts[1], "z": parts[2]}
    columns = k.ne[1] * k.ne[2] * k.ne[3]
    launches = (
        per_element(ROWS, by_row, rows, facts, **options),
        per_element(COLUMNS, by_column, columns, facts, **options),
    )
    return Program(launches, scratch=known.nbytes)


def _part(node: Tensor, count: int, start: int) -> Region:
    """`count` elements of the result from element `start` on."""
    total = F32.size * count
    return Region(node, F32, (count, 1, 1, 1), (F32.size, total, total, total), start * F32.size)
