"""Softmax of rows."""

from typing import Any

from tensorplug.device import Tensor
from tensorplug.dtypes import F16, F32
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import group_size, per_row, places_of
from tensorplug_simt.lowering import lowers, need_types, number
from tensorplug_simt.program import Kernel, Program

SLOPE = "tensorplug_simt:kernels/slope.k"
"""A part of its kernel, and of those of attention: `slope_of`."""
SOFT_MAX = Kernel(
    "soft_max",
    "tensorplug_simt:kernels/softmax.k",
    ("x", "mask", "sinks", "y"),
    ("y",),
    (("scale", "float"), ("max_bias", "float"), ("even", "int")),
    (SLOPE,),
)
KEPT = 8
"""Elements of a row that an item holds in registers; longer rows lie in memory meanwhile."""


@lowers("soft_max")
def soft_max(node: Tensor, facts: Facts) -> Program:
    """Softmax of scale * x + slope * mask, sinks in the divisor only."""
    items = group_size(node.ne[0], facts)
    kept = KEPT if not facts.wide and node.ne[0] <= KEPT * items else 0
    return soft_max_of(SOFT_MAX, node, facts, items, KEPT=kept)


def soft_max_of(kernel: Kernel, node: Tensor, facts: Facts, items: int, **defines: int) -> Program:
    """The program of a node, with a group of `items` for each row."""
    need_types(node, frozenset({F32, F16}))
    numbers: dict[str, Any] = {name: number(node, name) for name in ("scale", "max_bias")}
    numbers["even"] = largest_power(node.ne[2])
    launch = per_row(
        kernel,
        places_of(kernel, node),
        node.ne[1:],
        facts,
        items=items,
        defines=defines,
        numbers=numbers,
    )
    return Program((launch,))


def largest_power(heads: int) -> int:
    """The largest power of two that is at most `heads`: how many slopes belong to one base."""
    return 1 << (max(heads, 1).bit_length() - 1)
