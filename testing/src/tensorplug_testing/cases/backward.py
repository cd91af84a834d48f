"""Cases of gradients. Those of `rope_back` use the parameters of the cases of `rope`."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import tensorplug as tp
from tensorplug_testing.cases import grid, rope
from tensorplug_testing.cases.case import Arg, Array, Case, Data, among, uniform
from tensorplug_testing.cases.elementwise import REAL

_LAYOUTS = ("plain", "permuted", "transposed", "rows", "columns", "shifted")
_SHAPES = [(7, 5, 3, 2), (64, 5, 4, 3), (1, 3), (33,), (1025, 2), (4, 0)]
_WIDE = uniform(-80, 80)


def _rows_of_shares(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    powers = np.exp(rng.uniform(-3, 3, shape))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


SHARES = Data("shares", _rows_of_shares)
"""Rows of positive numbers whose sum is 1."""


def two(op: str, first: Arg, second: Arg, **params: float) -> Case:
    """A gradient of an op with one source."""
    return Case(op=op, args=(first, second), params=params)


SILU = [
    *[two("silu_back", Arg(ne, t), Arg(ne, t, data=_WIDE)) for ne in _SHAPES for t in REAL],
    *[two("silu_back", Arg((7, 5)), Arg((7, 5), t)) for t in REAL[1:]],
    *[
        two("silu_back", Arg((7, 5, 3, 2), layout=a), Arg((7, 5, 3, 2), layout=b))
        for a, b in zip(_LAYOUTS, _LAYOUTS[::-1], strict=True)
    ],
    replace(two("silu_back", Arg((7, 5)), Arg((7, 5))), in_place=True),
]

RMS_NORM = [
    *[
        two("rms_norm_back", Arg(ne), Arg(ne), eps=eps)
        for ne in _SHAPES
        for eps in (0.0, 1e-6, 1e-4, 1e-1)
        if ne != (1, 3)  # the gradient of x / |x| consists of rounding errors
    ],
    *[
        two("rms_norm_back", Arg((7, 5, 3, 2), layout=a), Arg((7, 5, 3, 2), layout=b))
        for a, b in zip(_LAYOUTS, _LAYOUTS[::-1], strict=True)
    ],
    two("rms_norm_back", Arg((64, 3)), Arg((64, 3), data=among(0.0)), eps=1e-3),
    two("rms_norm_back", Arg((64, 3)), Arg((64, 3), data=uniform(-1e4, 1e4))),
    replace(two("rms_norm_back", Arg((7, 5)), Arg((7, 5))), in_place=True),
]

SOFT_MAX = [
    *[
        two("soft_max_back", Arg(ne), Arg(ne, data=SHARES), scale=scale)
        for ne in [*_SHAPES[:5], (16, 16, 1, 1), (15, 15, 2, 3), (200, 4)]
        for scale in (1.0, 0.1, -2.5)
        if ne != (1, 3)  # y is 1 and the gradient 0, so relative errors have no meaning
    ],
    *[
        two("soft_max_back", Arg((7, 5, 3, 2), layout=a), Arg((7, 5, 3, 2), layout=b, data=SHARES))
        for a, b in zip(_LAYOUTS, _LAYOUTS[::-1], strict=True)
    ],
    replace(two("soft_max_back", Arg((7, 5)), Arg((7, 5), data=SHARES)), in_place=True),
    *[
        two("soft_max_back", Arg((n, 3, *rest), layout=a), Arg((n, 3, *rest), data=SHARES))
        for n in (2, 31, 32, 127, 513)
        for rest, a in [((1,), "plain"), ((2, 2), "rows"), ((1, 3), "permuted")]
    ],
    *[
        two("soft_max_back", Arg((n, 4)), Arg((n, 4), data=SHARES), scale=scale)
        for n in (64, 1024)
        for scale in (0.0, 0.125, 12.0)
    ],
]


_EXTRAS: list[Mapping[str, Any]] = [
    {},
    {"ext_factor": 0.6, "original_context": 128, "scale": 1.4, "attn_factor": 0.8},
]


def _turns_back() -> Iterator[Case]:
    for dtype, mode, (width, dims), heads, factors, extra in itertools.product(
        (tp.F32, tp.F16),
        ("normal", "neox"),
        [(128, 128), (96, 96), (80, 20), (80, 32), (64, 2)],
        (1, 5),
        (False, True),
        _EXTRAS,
    ):
        yield rope.rope(
            Arg((width, heads, 4), dtype), mode=mode, dims=dims, factors=factors, **extra
        )


ROPE = [replace(case, op="rope_back") for case in (*rope.CASES, *grid.TURNS, *_turns_back())]

LOSS = [
    *[
        two("cross_entropy_loss", Arg(ne, data=wide), Arg(ne, data=SHARES))
        for ne in [(7, 5, 3, 2), (10, 5, 4, 3), (30000, 1), (1, 3), (33,)]
        for wide in (uniform(-1, 1), uniform(-100, 100))
        if ne != (1, 3)
    ],
    *[
        two(
            "cross_entropy_loss",
            Arg((7, 5, 3, 2), layout=a),
            Arg((7, 5, 3, 2), layout=b, data=SHARES),
        )
        for a, b in zip(_LAYOUTS, _LAYOUTS[::-1], strict=True)
    ],
    *[
        Case(
            op="cross_entropy_loss_back",
            args=(Arg((1,)), Arg(ne, layout=a), Arg(ne, layout=b, data=SHARES)),
        )
        for ne, a, b in [
            *[(ne, "plain", "plain") for ne in [(7, 5, 3, 2), (10, 5, 4, 3), (30000, 1), (33,)]],
            *[((7, 5, 3, 2), a, b) for a, b in zip(_LAYOUTS, _LAYOUTS[::-1], strict=True)],
        ]
    ],
]


def _attention(
    size: int,
    width: int,
    tokens: int,
    positions: int,
    rest: tuple[int, int],
    layout: str = "plain",
    groups: tuple[int, int] = (1, 1),
) -> Case:
    more = (rest[0] * groups[0], rest[1] * groups[1])
    args = (
        Arg((size, tokens, *more), layout=layout),
        Arg((size, positions, *rest), layout=layout),
        Arg((positions, width, *rest), layout=layout),
        Arg((width, tokens, *more), layout=layout),
    )
    return Case(op="flash_attn_back", args=args, params={"masked": positions > tokens})


ATTENTION = [
    _attention(size, width, tokens, positions, rest, layout)
    for size, width in [(8, 8), (16, 5), (1, 1)]
    for tokens, positions in [(4, 4), (3, 7), (1, 5), (5, 3)]
    for rest in [(1, 1), (3, 2)]
    for layout in ("plain", "permuted")
] + [
    _attention(size, 3, tokens, positions, rest, groups=groups)
    for size, (tokens, positions) in itertools.product((2, 7), [(3, 3), (2, 5), (0, 2), (2, 0)])
    for rest, groups in [((2, 1), (3, 1)), ((1, 1), (4, 2)), ((2, 2), (2, 3))]
]

CASES = [*SILU, *RMS_NORM, *SOFT_MAX, *ROPE, *LOSS, *ATTENTION]
