"""Rows divided by a statistic of themselves."""

from typing import Any

from tensorplug.dtypes import F32
from tensorplug.fusion import Group
from tensorplug.tensor import Tensor
from tensorplug_cuda.kernels.rows import group_size, per_group
from tensorplug_cuda.kernels.table import GROUPS, OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import NoKernel, lowers, lowers_group, need_type, need_types, number
from tensorplug_simt.program import Kernel, Program, Region, blocks_of, region

TEXT = "tensorplug_cuda:kernels/norm.cu"

NORM = Kernel(
    "norm", TEXT, ("x", "y"), ("y",), (("centred", "int"), ("whole", "int"), ("eps", "float"))
)
NORM_FUSED = Kernel(
    "norm_fused",
    TEXT,
    ("x", "other", "weight", "bias", "sum", "y"),
    ("sum", "y"),
    (("centred", "int"), ("eps", "float")),
)
GROUP_NORM = Kernel("group_norm", TEXT, ("x", "y"), ("y",), (("together", "int"), ("eps", "float")))


@lowers("norm", "rms_norm", "l2_norm", table=OWN)
def norm(node: Tensor, facts: Facts) -> Program:
    """Rows less their mean (norm), over the root of their mean square or over their length."""
    need_types(node, frozenset({F32}))
    (x,) = node.sources
    numbers: dict[str, Any] = {
        "centred": int(node.op == "norm"),
        "whole": int(node.op == "l2_norm"),
        "eps": number(node, "eps"),
    }
    items = group_size(x.ne[0], facts)
    return Program((per_group(NORM, {"x": x, "y": node}, node.ne[1:], items, numbers),))


@lowers("group_norm", table=OWN)
def group_norm(node: Tensor, facts: Facts) -> Program:
    """Groups of channels, each normalised as one row."""
    need_types(node, frozenset({F32}))
    (x,) = node.sources
    together = blocks_of(node.ne[2], int(number(node, "groups")))
    groups = (blocks_of(node.ne[2], together), node.ne[3], 1)
    places = {"x": _planes(x), "y": _planes(node)}
    numbers: dict[str, Any] = {"together": together, "eps": number(node, "eps")}
    items = group_size(places["x"].ne[0], facts)
    return Program((per_group(GROUP_NORM, places, groups, items, numbers),))


def _planes(x: Tensor) -> Region:
    """`x` with each channel as one row, where its rows follow each other."""
    (width, height, channels, batch), nb = x.ne, x.nb
    if nb[1] != width * nb[0]:
        return region(x)
    return Region(x, x.dtype, (width * height, 1, channels, batch), nb)


@lowers_group("norm_mul", "add_norm", table=GROUPS)
def norm_fused(group: Group, facts: Facts) -> Program:
    """A norm with the sum before it, or the factor and the summand after it."""
    normed = group["normed"]
    if normed.op == "group_norm":
        raise NoKernel("no fused kernel for group_norm")
    added = "sum" in group
    x = group["a"] if added else group["x"]
    if added and x.ne != group["sum"].ne:
        raise NoKernel("no kernel for a sum that is larger than its first source")
    places = {"x": x, "y": group.last}
    if added:
        places |= {"other": group["b"], "sum": group["sum"]}
    places |= {name: group[name] for name in ("weight", "bias") if name in group}
    for tensor in places.values():
        need_type(tensor, frozenset({F32}))
        if tensor.nb[0] != F32.size or tensor.ne[0] != normed.ne[0]:
            raise NoKernel(f"no kernel for the layout of {tensor}")
    kinds = {"ADDED": added, "SCALED": "weight" in group, "SHIFTED": "bias" in group}
    defines = {name: 1 for name, there in kinds.items() if there}
    numbers: dict[str, Any] = {
        "centred": int(normed.op == "norm"),
        "eps": number(normed, "eps"),
    }
    items = group_size(normed.ne[0], facts)
    return Program((per_group(NORM_FUSED, places, normed.ne[1:], items, numbers, defines),))
