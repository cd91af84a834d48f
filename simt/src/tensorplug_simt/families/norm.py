"""Rows divided by a statistic of themselves, with what is added before or after."""

from collections.abc import Mapping
from typing import Any

from tensorplug.device import Group, Tensor
from tensorplug.dtypes import F32
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import Regions, group_size, per_row, regions_of, repeated
from tensorplug_simt.lowering import NoKernel, lowers, lowers_group, need_type, number
from tensorplug_simt.program import Grid, Kernel, Program, Region, blocks_of, region

TEXT = "tensorplug_simt:kernels/norm.k"
EPS = ("eps", "float")
NORM = Kernel("norm", TEXT, ("x", "y"), ("y",), (("centred", "int"), ("whole", "int"), EPS))
GROUP_NORM = Kernel("group_norm", TEXT, ("x", "y"), ("y",), (("together", "int"), EPS))
NORM_FUSED = Kernel(
    "norm_fused",
    TEXT,
    ("x", "other", "weight", "bias", "sum", "y"),
    ("sum", "y"),
    (EPS,),
)
"""Compiled with CENTRED, ADDED, SCALED and SHIFTED for what is there, and HELD where items hold a
row, with WHOLE if all of them have HELD elements of it."""
MOST_HELD = 16
"""Elements of a row that an item can hold."""


def _rows(
    kernel: Kernel,
    regions: Regions,
    rows: Grid,
    facts: Facts,
    numbers: Mapping[str, Any],
    defines: Mapping[str, int] | None = None,
) -> Program:
    """A group for each row of `x`."""
    for tensor in regions.values():
        need_type(tensor, frozenset({F32}))
    items = group_size(regions["x"].ne[0], facts)
    return Program(
        (per_row(kernel, regions, rows, facts, items=items, defines=defines, numbers=numbers),)
    )


@lowers("norm", "rms_norm", "l2_norm")
def norm(node: Tensor, facts: Facts) -> Program:
    """Rows less their mean (norm), over the root of their mean square or over their length."""
    numbers = {
        "centred": int(node.op == "norm"),
        "whole": int(node.op == "l2_norm"),
        "eps": number(node, "eps"),
    }
    return _rows(NORM, regions_of(NORM, node), node.ne[1:], facts, numbers)


@lowers("group_norm")
def group_norm(node: Tensor, facts: Facts) -> Program:
    """Groups of channels, each normalised as one row."""
    together = blocks_of(node.ne[2], int(number(node, "groups")))
    groups = (blocks_of(node.ne[2], together), node.ne[3], 1)
    numbers = {"together": together, "eps": number(node, "eps")}
    regions = {"x": _planes(node.sources[0]), "y": _planes(node)}
    return _rows(GROUP_NORM, regions, groups, facts, numbers)


def _planes(x: Tensor) -> Region:
    """`x` with each channel as one row, where its rows follow each other."""
    (width, height, channels, batch), nb = x.ne, x.nb
    if nb[1] != width * nb[0]:
        return region(x)
    return Region(x, x.dtype, (width * height, 1, channels, batch), nb)


@lowers_group("norm_mul", "add_norm")
def norm_fused(group: Group, facts: Facts) -> Program:
    """A norm with the sum before it, or the factor and the summand after it."""
    normed = group["normed"]
    if normed.op == "group_norm":
        raise NoKernel("no fused kernel for group_norm")
    added = "sum" in group
    x = group["a"] if added else group["x"]
    if added and x.ne != group["sum"].ne:
        raise NoKernel("no kernel for a sum that is larger than its first source")
    regions = {"x": x, "y": group.last}
    if added:
        regions |= {"other": group["b"], "sum": group["sum"]}
    regions |= {name: group[name] for name in ("weight", "bias") if name in group}
    for tensor in regions.values():
        if tensor.nb[0] != F32.size or tensor.ne[0] != normed.ne[0]:
            raise NoKernel(f"no kernel for the layout of {tensor}")
    rows = {name: repeated(tensor, normed.ne) for name, tensor in regions.items()}
    kinds = {
        "CENTRED": normed.op == "norm",
        "ADDED": added,
        "SCALED": "weight" in group,
        "SHIFTED": "bias" in group,
    }
    length, items = normed.ne[0], group_size(normed.ne[0], facts)
    held = blocks_of(length, items)
    kinds["WHOLE"] = held <= MOST_HELD and length == held * items
    defines = {name: 1 for name, there in kinds.items() if there}
    if held <= MOST_HELD:
        defines["HELD"] = held
    numbers = {"eps": number(normed, "eps")}
    return _rows(NORM_FUSED, rows, normed.ne[1:], facts, numbers, defines)
