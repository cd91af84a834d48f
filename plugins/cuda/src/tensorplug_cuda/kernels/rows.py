"""Launches of a group for each row, larger where rows are longer."""

from collections.abc import Mapping

from tensorplug.tensor import Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.program import Grid, Kernel, Launch, Number, Region, launch

LARGEST = 512
"""Items of a group; each has several elements of a row of thousands."""
EACH = 4
"""Elements of a row that are worth an item."""


def group_size(length: int, facts: Facts) -> int:
    """Items for a row of `length`: whole warps, a power of two."""
    size, largest = 32, min(LARGEST, facts.max_group)
    while size < largest and size * EACH < length:
        size *= 2
    return size


def per_group(
    kernel: Kernel,
    places: Mapping[str, Tensor | Region],
    rows: Grid,
    items: int,
    numbers: Mapping[str, Number],
    defines: Mapping[str, int | str] | None = None,
) -> Launch:
    """A group of `items` for each row: `GROUP_X`, `GROUP_Y` and `GROUP_Z` are its indices."""
    return launch(
        kernel,
        places,
        groups=rows,
        local=(items,),
        defines={"GROUP_SIZE": items, **(defines or {})},
        numbers=numbers,
    )
