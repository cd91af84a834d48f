"""Rows divided by a statistic of themselves: what kernels get, however many items they have."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorplug.device import Group, Tensor
from tensorplug.dtypes import F32
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import Places, per_row
from tensorplug_simt.lowering import (
    GroupLowering,
    Lowering,
    NoKernel,
    lowers,
    lowers_group,
    need_type,
    need_types,
    number,
)
from tensorplug_simt.program import Grid, Kernel, Program, Region, blocks_of, region

Items = Callable[[int, Facts], int]
"""How many items a group has that takes a row of so many elements."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """A launch but for its kernel and items: a group for each of `rows` of `length` elements."""

    places: Places
    rows: Grid
    length: int
    numbers: Mapping[str, Any]
    defines: Mapping[str, int] = field(default_factory=dict)


def lower_norms(
    text: str,
    own: dict[str, Lowering],
    groups: dict[str, GroupLowering],
    items: Items | None = None,
) -> None:
    """Enter lowerings to the kernels of `text` into a backend's tables.

    `text` has the sections `norm`, `group_norm` and `norm_fused`, with the buffers and numbers that
    `_kernels` names; `norm_fused` is compiled with ADDED, SCALED and SHIFTED for what is there.
    Without `items` there are as many as `per_row` takes.
    """
    norm, group_norm, norm_fused = _kernels(text)

    def program(kernel: Kernel, made: _Rows, facts: Facts) -> Program:
        launch = per_row(
            kernel,
            made.places,
            made.rows,
            facts,
            items=items(made.length, facts) if items is not None else 0,
            defines=made.defines,
            numbers=made.numbers,
        )
        return Program((launch,))

    @lowers("norm", "rms_norm", "l2_norm", table=own)
    def _(node: Tensor, facts: Facts) -> Program:
        return program(norm, _norm(node), facts)

    @lowers("group_norm", table=own)
    def _(node: Tensor, facts: Facts) -> Program:
        return program(group_norm, _group_norm(node), facts)

    @lowers_group("norm_mul", "add_norm", table=groups)
    def _(group: Group, facts: Facts) -> Program:
        return program(norm_fused, _fused(group), facts)


def _kernels(text: str) -> tuple[Kernel, Kernel, Kernel]:
    """The kernels in a text of a backend: of norms, of groups of channels, of fused groups."""
    eps = ("eps", "float")
    fused = ("x", "other", "weight", "bias", "sum", "y")
    return (
        Kernel("norm", text, ("x", "y"), ("y",), (("centred", "int"), ("whole", "int"), eps)),
        Kernel("group_norm", text, ("x", "y"), ("y",), (("together", "int"), eps)),
        Kernel("norm_fused", text, fused, ("sum", "y"), (("centred", "int"), eps)),
    )


def _norm(node: Tensor) -> _Rows:
    """Rows less their mean (norm), over the root of their mean square or over their length."""
    need_types(node, frozenset({F32}))
    (x,) = node.sources
    numbers = {
        "centred": int(node.op == "norm"),
        "whole": int(node.op == "l2_norm"),
        "eps": number(node, "eps"),
    }
    return _Rows({"x": x, "y": node}, node.ne[1:], x.ne[0], numbers)


def _group_norm(node: Tensor) -> _Rows:
    """Groups of channels, each normalised as one row."""
    need_types(node, frozenset({F32}))
    (x,) = node.sources
    together = blocks_of(node.ne[2], int(number(node, "groups")))
    groups = (blocks_of(node.ne[2], together), node.ne[3], 1)
    numbers = {"together": together, "eps": number(node, "eps")}
    places = {"x": _planes(x), "y": _planes(node)}
    return _Rows(places, groups, places["x"].ne[0], numbers)


def _planes(x: Tensor) -> Region:
    """`x` with each channel as one row, where its rows follow each other."""
    (width, height, channels, batch), nb = x.ne, x.nb
    if nb[1] != width * nb[0]:
        return region(x)
    return Region(x, x.dtype, (width * height, 1, channels, batch), nb)


def _fused(group: Group) -> _Rows:
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
    numbers = {"centred": int(normed.op == "norm"), "eps": number(normed, "eps")}
    return _Rows(places, normed.ne[1:], normed.ne[0], numbers, defines)
