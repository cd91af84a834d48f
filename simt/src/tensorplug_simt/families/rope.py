"""Rotary position embedding and its gradient."""

import math
from typing import Any

from tensorplug.dtypes import F16, F32, I32
from tensorplug.tensor import Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import NoKernel, lowers, need_type, number
from tensorplug_simt.program import Kernel, Program, blocks_of, launch

RUNGS = 12
"""Bits of the number of a pair."""

_INTEGERS = ("pairs", "heads", "sectioned", "interleaved", "restart")
_SIZES = ("size0", "size1", "size2", "size3")
_FLOATS = ("scale", "ext_factor", "low", "width", "size", "way")
_LADDER = tuple(f"rung{i}" for i in range(RUNGS))

ROPE = Kernel(
    "rope",
    "tensorplug_simt:kernels/rope.k",
    ("x", "positions", "factors", "y"),
    ("y",),
    (
        *((name, "long") for name in _LADDER),
        *((name, "int") for name in (*_INTEGERS, *_SIZES)),
        *((name, "float") for name in _FLOATS),
    ),
)

_TOGETHER = 32
"""Items of a group that have a pair each."""
_LANES = 16
"""Pairs of an item that is alone in its group."""
_HEADS = 4
"""Heads that one item turns where there are many items: they share the work for the angle."""


@lowers("rope", "rope_back")
def rope(node: Tensor, facts: Facts) -> Program:
    """Turn the first pairs of each head, copy what is left."""
    x, positions, factors = node.operands
    assert x is not None
    assert positions is not None
    for tensor in (node, x):
        need_type(tensor, frozenset({F32, F16}))
    need_type(positions, frozenset({I32}))
    vision = node.params["mode"] == "vision"
    pairs = int(number(node, "dims")) // (1 if vision else 2)
    heads = x.ne[1] if facts.wide else min(_HEADS, x.ne[1])
    parts = blocks_of(x.ne[1], heads)
    places = {"x": x, "positions": positions, "y": node}
    if factors is not None:
        need_type(factors, frozenset({F32}))
        places["factors"] = factors
    lanes, together = (_LANES, 1) if facts.wide else (1, _TOGETHER)
    defines: dict[str, int | str] = {"LANES": lanes}
    if all(t.nb[0] == t.dtype.size for t in (x, node)):
        defines["PACKED"] = 1
    if node.params["mode"] == "normal":
        defines["NEIGHBOURS"] = 1
    return Program(
        (
            launch(
                ROPE,
                places,
                groups=(x.ne[2], blocks_of(pairs, lanes * together), x.ne[3] * parts),
                local=(together,),
                defines=defines,
                pairs=pairs,
                heads=heads,
                way=-1.0 if node.op == "rope_back" else 1.0,
                **_sections(node),
                **_ladder(node, pairs),
                **_yarn(node),
            ),
        )
    )


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
