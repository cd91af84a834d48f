"""Cases of rotary position embedding: modes, partial heads, YaRN, factors."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import tensorplug as tp
from tensorplug_testing.cases.case import Arg, Array, Case, Data, uniform

LIMIT = 1e-9
"""Normalised mean square error in f32. Errors of 0.001 in positions give fifty times as much."""
HALF_LIMIT = 1e-7
"""Normalised mean square error of results that are rounded to f16."""

_TYPES = (tp.F32, tp.F16)
_POSITIONS = Data("positions", lambda rng, shape: rng.integers(0, 500, shape))
_FACTORS = uniform(0.9, 2.0)
_YARN: Mapping[str, Any] = {
    "ext_factor": 0.7,
    "attn_factor": 1.1,
    "scale": 0.25,
    "original_context": 256,
}
_NO_YARN: Mapping[str, Any] = {}


def _counted(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.arange(shape[-1]) + int(rng.integers(0, 9))


_COUNTED = Data("counted", lambda rng, shape: np.broadcast_to(_counted(rng, shape), shape))


def rope(
    x: Arg,
    *,
    positions: Data = _POSITIONS,
    layout: str = "plain",
    factors: bool = False,
    in_place: bool = False,
    **params: Any,
) -> Case:
    """Rope of `x`, with the number of positions and factors that its mode needs."""
    mode = params.get("mode", "normal")
    tokens = x.ne[2] * (1 if mode in ("normal", "neox") else 4)
    pairs = params["dims"] if mode == "vision" else params["dims"] // 2
    args = (
        x,
        Arg((tokens,), tp.I32, layout, positions),
        Arg((pairs,), layout=layout, data=_FACTORS) if factors else None,
    )
    limit = LIMIT if x.dtype is tp.F32 else HALF_LIMIT
    return Case(op="rope", args=args, params=params, limit=limit, in_place=in_place)


_PLAIN_MODES = [
    rope(Arg(ne, dtype, layout), mode=mode, dims=dims)
    for mode in ("normal", "neox")
    for dtype in _TYPES
    for ne, dims, layout in [
        ((32, 3, 5, 2), 32, "plain"),
        ((32, 3, 5, 2), 20, "plain"),
        ((32, 3, 5, 2), 32, "permuted"),
        ((32, 3, 5, 2), 16, "columns"),
        ((2, 1, 1), 2, "plain"),
        ((128, 4, 3), 128, "shifted"),
    ]
]

_SCALED = [
    rope(Arg((32, 3, 5)), mode=mode, dims=dims, factors=factors, base=base, **yarn)
    for mode in ("normal", "neox")
    for dims, base in [(32, 10000.0), (24, 1e6)]
    for factors in (False, True)
    for yarn in (_NO_YARN, {"scale": 0.5}, _YARN, {**_YARN, "beta_fast": 8.0, "beta_slow": 0.5})
    if factors or yarn
]

_SECTIONED = [
    rope(Arg((32, 3, 5, 2), dtype), mode=mode, dims=dims, sections=sections, factors=factors)
    for dtype in _TYPES
    for mode, dims, sections in [
        ("mrope", 32, (4, 6, 6, 0)),
        ("mrope", 32, (2, 2, 2, 2)),
        ("mrope", 24, (3, 3, 3, 3)),
        ("imrope", 32, (6, 5, 5, 0)),
        ("imrope", 24, (4, 3, 3, 2)),
        ("imrope", 32, (3, 3, 2, 0)),
        ("vision", 16, (8, 8, 0, 0)),
        ("vision", 16, (4, 4, 4, 4)),
        ("vision", 16, (4, 4, 0, 0)),
    ]
    for factors in (False, True)
]

_MORE = [
    rope(Arg((32, 3, 5)), dims=32, positions=_COUNTED, layout="columns"),
    rope(Arg((32, 3, 5)), dims=32, mode="neox", positions=_COUNTED, layout="shifted"),
    rope(Arg((32, 3, 5)), dims=32, in_place=True),
    rope(Arg((32, 3, 5), layout="shifted"), dims=20, mode="neox", in_place=True),
    rope(Arg((32, 3, 5), tp.F16), dims=32, mode="neox", in_place=True),
    rope(Arg((32, 3, 5)), dims=32, mode="mrope", sections=(4, 6, 6, 0), **_YARN),
    rope(Arg((32, 3, 5)), dims=16, mode="vision", sections=(8, 8, 0, 0), in_place=True),
    rope(Arg((32, 3, 5), layout="transposed"), dims=32),
    rope(Arg((32, 3, 5)), dims=32, layout="spaced"),
    rope(Arg((32, 3, 5), layout="spaced"), dims=32, mode="neox", factors=True, layout="spaced"),
]

_OFFSET = [
    rope(Arg((40, 3, 5, 2), dtype, layout), mode=mode, dims=dims, offset=offset, **more)
    for mode in ("normal", "neox")
    for dtype, layout, dims, offset, more in [
        (tp.F32, "plain", 16, 24, _NO_YARN),
        (tp.F32, "permuted", 20, 7, _NO_YARN),
        (tp.F16, "plain", 24, 8, _YARN),
        (tp.F32, "shifted", 16, 12, {"factors": True, "in_place": True}),
    ]
]
_OFFSET.append(rope(Arg((40, 3, 5)), mode="mrope", dims=24, offset=16, sections=(3, 3, 3, 3)))

CASES = [*_PLAIN_MODES, *_SCALED, *_SECTIONED, *_MORE, *_OFFSET]
