"""Softmax of rows: what kernels get, however many items they have."""

from typing import Any

from tensorplug.device import Tensor
from tensorplug.dtypes import F16, F32
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_row
from tensorplug_simt.lowering import need_types, number
from tensorplug_simt.program import Kernel, Program

TEXT = "tensorplug_simt:kernels/softmax.k"
"""For devices where a row is the work of a group; `soft_max_of` with KEPT."""
SLOPE = "tensorplug_simt:kernels/slope.k"
"""A part of its kernel, and of those of attention: `slope_of`."""


def soft_max_kernel(text: str, *parts: str) -> Kernel:
    """The section `soft_max` of `text`."""
    numbers = (("scale", "float"), ("max_bias", "float"), ("even", "int"))
    return Kernel("soft_max", text, ("x", "mask", "sinks", "y"), ("y",), numbers, parts)


def soft_max_of(kernel: Kernel, node: Tensor, facts: Facts, items: int, **defines: int) -> Program:
    """The program of a node, with a group of `items` for each row."""
    need_types(node, frozenset({F32, F16}))
    named = zip(kernel.buffers[:3], node.operands, strict=True)
    places = {name: tensor for name, tensor in named if tensor is not None}
    numbers: dict[str, Any] = {name: number(node, name) for name in ("scale", "max_bias")}
    numbers["even"] = largest_power(node.ne[2])
    launch = per_row(
        kernel,
        {**places, "y": node},
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
