"""Softmax of rows."""

from typing import Any

from tensorplug.dtypes import F16, F32
from tensorplug.tensor import Tensor
from tensorplug_opencl.kernels.table import OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_row
from tensorplug_simt.lowering import lowers, need_types, number
from tensorplug_simt.own.softmax import largest_power
from tensorplug_simt.program import Kernel, Program

SOFT_MAX = Kernel(
    "soft_max",
    "tensorplug_opencl:kernels/softmax.cl",
    ("x", "mask", "sinks", "y"),
    ("y",),
    (("scale", "float"), ("max_bias", "float"), ("even", "int")),
)


@lowers("soft_max", table=OWN)
def soft_max(node: Tensor, facts: Facts) -> Program:
    """Softmax of scale * x + slope * mask, sinks in the divisor only."""
    need_types(node, frozenset({F32, F16}))
    named = zip(("x", "mask", "sinks"), node.operands, strict=True)
    places = {name: t for name, t in named if t is not None}
    numbers: dict[str, Any] = {name: number(node, name) for name in ("scale", "max_bias")}
    numbers["even"] = largest_power(node.ne[2])
    return Program((per_row(SOFT_MAX, {**places, "y": node}, node.ne[1:], facts, **numbers),))
