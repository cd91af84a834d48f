"""Cases of resizing, padding, rolling and embeddings of times."""

import itertools
from typing import Any

from tensorplug_testing.cases.case import Arg, Case, integers, uniform

_LAYOUTS = ("permuted", "transposed", "rows", "columns", "shifted", "spaced")
Ne = tuple[int, ...]


def resized(x: Ne, ne: Ne, layout: str = "plain", **params: Any) -> Case:
    """`x` resized to sizes `ne`."""
    return Case(op="upscale", args=(Arg(x, layout=layout),), params={"ne": ne, "rank": 4, **params})


_MODES: list[dict[str, Any]] = [
    {"mode": "nearest"},
    {"mode": "nearest", "align_corners": True},
    {"mode": "bilinear"},
    {"mode": "bilinear", "align_corners": True},
    {"mode": "bilinear", "antialias": True},
    {"mode": "bilinear", "align_corners": True, "antialias": True},
    {"mode": "bicubic"},
    {"mode": "bicubic", "align_corners": True},
]

RESIZED = [
    *[
        resized(x, ne, **mode)
        for mode in _MODES
        for x, ne in [
            ((4, 4, 3, 2), (8, 8, 3, 2)),
            ((4, 4, 3, 2), (4, 4, 3, 2)),
            ((2, 5, 7, 1), (5, 7, 11, 2)),
            ((5, 7, 11, 3), (2, 5, 7, 3)),
            ((5, 6, 1, 1), (15, 3, 1, 1)),
            ((1, 1, 2, 1), (3, 4, 2, 1)),
            ((8, 8, 1, 1), (1, 1, 1, 1)),
            ((16, 3, 1, 1), (3, 16, 1, 1)),
            ((49, 7, 1, 1), (14, 35, 1, 1)),
            ((12, 8, 3, 21), (5, 3, 21, 3)),
        ]
    ],
    *[
        resized((4, 5, 3, 2), (8, 3, 3, 2), layout, **mode)
        for layout in _LAYOUTS
        for mode in ({"mode": "nearest"}, {"mode": "bilinear"}, {"mode": "bicubic"})
    ],
]


def padded(x: Ne, pads: Ne, *, circular: bool = False, layout: str = "plain") -> Case:
    """`x` padded by `pads`."""
    return Case(
        op="pad",
        args=(Arg(x, layout=layout),),
        params={"pads": pads, "circular": circular},
        compare="exact",
    )


PADDED = [
    *[
        padded(x, pads, circular=circular)
        for circular in (False, True)
        for x, pads in [
            ((7, 5, 3, 2), (0, 0, 0, 0, 0, 0, 0, 0)),
            ((7, 5, 3, 2), (1, 2, 0, 0, 0, 0, 0, 0)),
            ((7, 5, 3, 2), (0, 3, 2, 1, 1, 1, 0, 2)),
            ((8, 8, 1, 1), (1, 1, 1, 1, 0, 0, 0, 0)),
            ((1, 1, 1, 1), (2, 3, 1, 0, 0, 1, 1, 1)),
            ((3, 4, 2, 1), (9, 7, 0, 10, 5, 0, 2, 2)),
        ]
    ],
    *[
        padded((7, 5, 3, 2), (1, 2, 3, 0, 0, 1, 2, 0), circular=circular, layout=layout)
        for layout in _LAYOUTS
        for circular in (False, True)
    ],
    padded((3, 0, 2, 1), (1, 1, 2, 0, 0, 0, 0, 0)),
    *[
        Case(
            op="pad_reflect_1d",
            args=(Arg((n, 5, 3, 2), layout=layout),),
            params={"p0": left, "p1": right},
            compare="exact",
        )
        for n, left, right in [(7, 3, 2), (7, 6, 6), (7, 0, 0), (1, 0, 0), (2, 1, 0), (33, 0, 10)]
        for layout in ("plain", *_LAYOUTS)
    ],
]

ROLLED = [
    *[
        Case(op="roll", args=(Arg((7, 5, 3, 2)),), params={"shifts": shifts}, compare="exact")
        for shifts in itertools.product((0, 3), (-2, 0), (1, -1), (0, 1))
    ],
    *[
        Case(
            op="roll",
            args=(Arg((7, 5, 3, 2), layout=layout),),
            params={"shifts": (-3, 2, 1, -1)},
            compare="exact",
        )
        for layout in _LAYOUTS
    ],
]

TIMES = [
    Case(
        op="timestep_embedding",
        args=(Arg((count,), layout=layout, data=data),),
        params={"dim": dim, "max_period": period},
        limit=1e-6,
    )
    for count, dim, period in [(2, 320, 10000), (1, 2, 10), (5, 33, 1000), (7, 64, 100), (3, 1, 9)]
    for layout, data in [
        ("plain", integers(0, 100)),
        ("plain", uniform(0, 20)),
        ("spaced", uniform(0, 20)),
    ]
]

CASES = [*RESIZED, *PADDED, *ROLLED, *TIMES]
