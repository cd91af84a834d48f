"""Softmax of rows."""

from typing import Any

from tensorplug.device import Tensor
from tensorplug.dtypes import F16, F32
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import group_size, per_row, regions_of
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
    need_types(node, frozenset({F32, F16}))
    items = group_size(node.ne[0], facts)
    kept = KEPT if not facts.wide and node.ne[0] <= KEPT * items else 0
    numbers: dict[str, Any] = {name: number(node, name) for name in ("scale", "max_bias")}
    launch = per_row(
        SOFT_MAX,
        regions_of(SOFT_MAX, node),
        node.ne[1:],
        facts,
        items=items,
        defines={"KEPT": kept},
        numbers={**numbers, "even": largest_power(node.ne[2])},
    )
    return Program((launch,))


def largest_power(heads: int) -> int:
    """The largest power of two that is at most `heads`: how many slopes belong to one base."""
    return 1 << (max(heads, 1).bit_length() - 1)
