"""Launches that read and write elements at the same place of several tensors."""

from collections.abc import Mapping
from math import prod

from tensorplug.device import Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.copying import LONG_ROW, is_contiguous
from tensorplug_simt.grids import per_element
from tensorplug_simt.program import Kernel, Launch, Number, Region, blocks_of, launch, region

TEXT = "tensorplug_simt:kernels/elementwise.k"
COUNT = ("count", "uint")
CHUNK = 1024
"""Elements that one item of a wide device computes one after another."""


def alike(
    kernel: Kernel,
    operands: Mapping[str, Tensor | Region],
    facts: Facts,
    *,
    defines: Mapping[str, int | str] | None = None,
    numbers: Mapping[str, Number] | None = None,
    indices: bool = False,
) -> Launch:
    """An item for each element of `y`, with the elements at the same place of all others.

    The text calls these SPOT(name). Regions with other sizes than `y` are the text's own matter.
    `indices` says that the text asks for i0 to i3.
    """
    regions = {n: p if isinstance(p, Region) else region(p) for n, p in operands.items()}
    y = regions["y"]
    rest = dict(defines or {})
    count = prod(y.ne)
    same = all(r.ne == y.ne and not r.dtype.is_block for r in regions.values())
    if same and not indices and all(map(is_contiguous, regions.values())):
        return _in_order(kernel, regions, facts, rest, {**(numbers or {}), "count": count})
    if count and y.ne[0] >= LONG_ROW:
        return by_rows(kernel, regions, facts, rest, numbers or {})
    return per_element(kernel, regions, count, facts, defines=rest, numbers=numbers)


def _in_order(
    kernel: Kernel,
    regions: Mapping[str, Region],
    facts: Facts,
    defines: Mapping[str, int | str],
    numbers: Mapping[str, Number],
) -> Launch:
    items, size, chunk = _shared(int(numbers["count"]), facts)
    return launch(
        kernel,
        regions,
        groups=(items,),
        local=(size,),
        defines={**defines, **chunk, "FLAT": 1},
        numbers=numbers,
    )


def _shared(count: int, facts: Facts) -> tuple[int, int, dict[str, int]]:
    """Groups for `count` elements, items in each, and the define that says how many an item has."""
    if facts.wide:
        return blocks_of(count, CHUNK), 1, {"CHUNK": CHUNK}
    return blocks_of(count, facts.flat_group), facts.flat_group, {}


def by_rows(
    kernel: Kernel,
    regions: Mapping[str, Region],
    facts: Facts,
    defines: Mapping[str, int | str],
    numbers: Mapping[str, Number],
) -> Launch:
    """Groups for parts of rows of the region `y`."""
    y = regions["y"]
    parts, size, chunk = _shared(y.ne[0], facts)
    return launch(
        kernel,
        regions,
        groups=(y.ne[1], parts, y.ne[2] * y.ne[3]),
        local=(size,),
        defines={**defines, **steps(regions), **chunk, "ROWS": 1},
        numbers={**numbers, "count": y.ne[0]},
    )


def steps(regions: Mapping[str, Region]) -> dict[str, str]:
    """What the text calls STEP_x for each region x: the bytes between neighbours in a row."""
    return {f"STEP_{name}": _step(name, each) for name, each in regions.items()}


def _step(name: str, memory: Region) -> str:
    if memory.ne[0] == 1:
        return "0"
    return f"{name}_bytes" if memory.nb[0] == memory.dtype.size else f"p.{name}.nb[0]"
