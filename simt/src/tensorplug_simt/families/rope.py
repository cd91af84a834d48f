"""Rotary position embedding and its gradient."""

import math
from collections.abc import Iterable
from typing import Any

from tensorplug.device import Group, Tensor, contiguous_nb
from tensorplug.dtypes import F16, F32, I32
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import group_size, power_of_two, repeated
from tensorplug_simt.lowering import NoKernel, lowers, need_type, number
from tensorplug_simt.program import Kernel, Program, Region, blocks_of, launch, region

RUNGS = 12
"""Bits of the number of a pair."""

_INTEGERS = ("offset", "pairs", "heads", "parts", "sectioned", "interleaved", "restart")
_SIZES = ("size0", "size1", "size2", "size3")
_FLOATS = ("scale", "ext_factor", "low", "width", "size", "way")
_LADDER = tuple(f"rung{i}" for i in range(RUNGS))

TEXT = "tensorplug_simt:kernels/rope.k"
_NUMBERS = (
    *((name, "long") for name in _LADDER),
    *((name, "int") for name in (*_INTEGERS, *_SIZES)),
    *((name, "float") for name in _FLOATS),
)
_PLACES = ("positions", "factors", "y")
ROPE = Kernel("rope", TEXT, ("x", *_PLACES), ("y",), _NUMBERS)
NORM_ROPE = Kernel("rope", TEXT, ("x", "weight", *_PLACES), ("y",), (*_NUMBERS, ("eps", "float")))
"""The same after a norm of each head."""

_TOGETHER = 32
"""Items of a group where each of them has one pair."""
_LANES = 16
"""Pairs of an item where a group is one item."""
_HEADS = 4
"""Heads that one item turns where there are many items: they share the work for the angle."""


@lowers("rope", "rope_back")
def rope(node: Tensor, facts: Facts) -> Program:
    """Turn the pairs of each head, copy what is left."""
    x, pairs = node.sources[0], _pairs(node)
    lanes, together = (_LANES, 1) if facts.wide else (1, _TOGETHER)
    turned = launch(
        ROPE,
        _places(node, x),
        groups=(_groups(x, facts), blocks_of(pairs, lanes * together), x.ne[3]),
        local=(together,),
        defines=_defines((x, node), node, lanes),
        numbers=_numbers(node, facts),
    )
    return Program((turned,))


def norm_rope(group: Group, facts: Facts) -> Program:
    """Each head over the root of its mean square, times a weight, then turned."""
    node, normed, weight = group["turned"], group["normed"], group["weight"]
    x = _heads(group["x"], node)
    if weight.ne[0] != x.ne[0] or (x.ne != normed.ne and weight.size != x.ne[0]):
        raise NoKernel(f"no kernel for heads of {node} with the weight {weight}")
    for tensor in (normed, weight):
        need_type(tensor, frozenset({F32}))
    pairs = _pairs(node)
    items = 1 if facts.wide else max(group_size(x.ne[0], facts), _items_of(pairs, facts))
    lanes = blocks_of(pairs, items)
    turned = launch(
        NORM_ROPE,
        _places(node, x) | {"weight": repeated(weight, x.ne)},
        groups=(_groups(x, facts), 1, x.ne[3]),
        local=(items,),
        defines={**_defines((x, weight, node), node, lanes), "GROUP_SIZE": items},
        numbers={**_numbers(node, facts), "eps": number(normed, "eps")},
    )
    return Program((turned,))


def _items_of(pairs: int, facts: Facts) -> int:
    """Items of a group, if it may be so large, that have one pair each: their code is short."""
    return min(power_of_two(max(pairs, 1)), facts.max_group)


def _heads(x: Tensor, node: Tensor) -> Region:
    """`x` as the heads that turn: its own rows, perhaps otherwise counted."""
    if x.ne == node.ne:
        return region(x)
    if x.ne[0] != node.ne[0] or not x.is_contiguous:
        raise NoKernel(f"no kernel for a norm of {x} as the heads of {node}")
    return Region(x, x.dtype, node.ne, contiguous_nb(x.dtype, node.ne))


def _pairs(node: Tensor) -> int:
    return int(number(node, "dims")) // (1 if node.params["mode"] == "vision" else 2)


def _groups(x: Tensor | Region, facts: Facts) -> int:
    """Groups for the heads of all tokens, along x: launches for more heads merge with others."""
    return x.ne[2] * blocks_of(x.ne[1], _heads_together(x, facts))


def _heads_together(x: Tensor | Region, facts: Facts) -> int:
    """Heads of one group: all of a wide device's, few where groups would be too few."""
    most = x.ne[1] if facts.wide else 1 if x.ne[2] * x.ne[3] <= facts.units else _HEADS
    return max(1, min(most, x.ne[1]))


def _places(node: Tensor, x: Tensor | Region) -> dict[str, Tensor | Region]:
    _, positions, factors = node.operands
    assert positions is not None
    for tensor in (node, node.sources[0]):
        need_type(tensor, frozenset({F32, F16}))
    need_type(positions, frozenset({I32}))
    regions = {"x": x, "positions": positions, "y": node}
    if factors is not None:
        need_type(factors, frozenset({F32}))
        regions["factors"] = factors
    return regions


def _defines(rows: Iterable[Tensor | Region], node: Tensor, lanes: int) -> dict[str, int | str]:
    defines: dict[str, int | str] = {"LANES": lanes}
    if all(t.nb[0] == t.dtype.size for t in rows):
        defines["PACKED"] = 1
    if node.params["mode"] == "normal":
        defines["NEIGHBOURS"] = 1
    return defines


def _numbers(node: Tensor, facts: Facts) -> dict[str, Any]:
    pairs, heads = _pairs(node), _heads_together(node, facts)
    return {
        "offset": int(number(node, "offset")),
        "pairs": pairs,
        "heads": heads,
        "parts": blocks_of(node.ne[1], heads),
        "way": -1.0 if node.op == "rope_back" else 1.0,
        **_sections(node),
        **_ladder(node, pairs),
        **_yarn(node),
    }


def _sections(node: Tensor) -> dict[str, Any]:
    """How sections share out the pairs."""
    mode, sections = node.params["mode"], node.params["sections"]
    assert isinstance(sections, tuple)
    sizes = [*(n for n in sections if isinstance(n, int)), 0, 0, 0, 0][:4]
    return {
        "sectioned": int(mode not in ("normal", "neox")),
        "interleaved": int(mode == "imrope"),
        "restart": int(mode == "vision"),
        **dict(zip(_SIZES, sizes, strict=True)),
    }


def _ladder(node: Tensor, pairs: int) -> dict[str, Any]:
    """base**(-2 * 2**i / dims) as fractions of 2**64, in the bits of signed integers."""
    base, dims = number(node, "base"), number(node, "dims")
    if base < 1 or pairs > 1 << RUNGS:
        raise NoKernel(f"base {base} with {pairs} pairs; there is one from 1 up to {1 << RUNGS}")
    steps = [min(int(base ** (-2.0 * 2**i / dims) * 2**64), 2**64 - 1) for i in range(RUNGS)]
    return {name: n - (n >> 63 << 64) for name, n in zip(_LADDER, steps, strict=True)}


def _yarn(node: Tensor) -> dict[str, Any]:
    """How slow pairs are interpolated: the ramp's start and width, and the magnitude."""
    names = ("scale", "ext_factor", "attn_factor", "dims", "base", "original_context")
    scale, extension, size, dims, base, context = (number(node, name) for name in names)
    if not extension:
        return {"scale": scale, "ext_factor": 0.0, "low": 0.0, "width": 1.0, "size": size}

    def turning(times: float) -> float:
        return dims * math.log(context / (times * 2 * math.pi)) / (2 * math.log(base))

    low = max(0.0, math.floor(turning(number(node, "beta_fast"))))
    high = min(dims - 1.0, math.ceil(turning(number(node, "beta_slow"))))
    grown = size * (1 + 0.1 * math.log(1 / scale))
    width = max(0.001, high - low)
    return {"scale": scale, "ext_factor": extension, "low": low, "width": width, "size": grown}
