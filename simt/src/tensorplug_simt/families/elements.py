"""Launches that read and write elements at the same place of several tensors."""

from collections.abc import Mapping

from tensorplug.tensor import Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.copying import LONG_ROW, is_contiguous
from tensorplug_simt.grids import per_element
from tensorplug_simt.program import Kernel, Launch, Number, Region, blocks_of, launch, region

TEXT = "tensorplug_simt:kernels/elementwise.k"
COUNT = ("count", "uint")


def alike(
    kernel: Kernel,
    places: Mapping[str, Tensor | Region],
    facts: Facts,
    *,
    defines: Mapping[str, int | str] | None = None,
    numbers: Mapping[str, Number] | None = None,
) -> Launch:
    """An item for each element of the place `y`, with the elements there of all other places.

    The text calls these SPOT(name). Places with other sizes than `y` are the text's own matter.
    """
    regions = {n: p if isinstance(p, Region) else region(p) for n, p in places.items()}
    y = regions["y"]
    rest = dict(defines or {})
    plain = [r for r in regions.values() if not r.dtype.is_block]
    in_order = all(r.ne == y.ne and is_contiguous(r) for r in regions.values())
    if in_order and len(plain) == len(regions):
        rest["FLAT"] = 1
    elif y.ne[0] >= LONG_ROW:
        return by_rows(kernel, regions, facts, rest, numbers or {})
    count = y.ne[0] * y.ne[1] * y.ne[2] * y.ne[3]
    return per_element(kernel, regions, count, facts, defines=rest, numbers=numbers)


def by_rows(
    kernel: Kernel,
    places: Mapping[str, Region],
    facts: Facts,
    defines: Mapping[str, int | str],
    numbers: Mapping[str, Number],
) -> Launch:
    """Groups for parts of rows of the place `y`."""
    y = places["y"]
    size = facts.flat_group
    return launch(
        kernel,
        places,
        groups=(y.ne[1], blocks_of(y.ne[0], size), y.ne[2] * y.ne[3]),
        local=(size,),
        defines={**defines, **steps(places), "ROWS": 1},
        numbers={**numbers, "count": y.ne[0]},
    )


def steps(places: Mapping[str, Region]) -> dict[str, str]:
    """What the text calls STEP_x for each place x: the bytes between neighbours in a row."""
    return {f"STEP_{name}": _step(name, place) for name, place in places.items()}


def _step(name: str, place: Region) -> str:
    if place.ne[0] == 1:
        return "0"
    return f"{name}_bytes" if place.nb[0] == place.dtype.size else f"p.{name}.nb[0]"
