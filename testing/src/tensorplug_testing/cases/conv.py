"""Cases of convolutions: strides, paddings, dilations, filters of every shape, layouts, types."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import tensorplug as tp
from tensorplug_testing.cases.case import Arg, Case, among, uniform

TYPES = (tp.F32, tp.F16, tp.BF16)
LAYOUTS = ("plain", "permuted", "transposed", "rows", "columns", "shifted")
Slide = dict[str, int]


def slides(dims: int, steps: tuple[int, ...], pads: tuple[int, ...]) -> list[Slide]:
    """All combinations of strides and paddings of each dimension, with dilations 1 and 2."""
    names = [f"{letter}{dim}" for letter in "spd" for dim in range(dims)]
    ranges = [steps] * dims + [pads] * dims + [(1, 2)] * dims
    return [dict(zip(names, numbers, strict=True)) for numbers in itertools.product(*ranges)]


def conv(
    kernel: tuple[int, ...],
    x: tuple[int, ...],
    slide: Mapping[str, Any] | None = None,
    *,
    op: str = "conv_2d",
    dtype: tp.DType = tp.F32,
    layouts: tuple[str, str] = ("plain", "plain"),
) -> Case:
    """A convolution of `x` (f32) with a filter of type `dtype`."""
    args = (Arg(kernel, dtype, layouts[0]), Arg(x, layout=layouts[1]))
    return Case(op=op, args=args, params=slide or {})


_ALL_LAYOUTS = [("plain", a) for a in LAYOUTS[1:]] + [(a, "plain") for a in LAYOUTS[1:]]

IMAGES = [
    *[
        conv((kw, kh, 2, 3), (7, 6, 2, 2), slide, dtype=TYPES[i % 2])
        for i, (slide, (kw, kh)) in enumerate(
            itertools.product(slides(2, (1, 3), (0, 2)), ((1, 1), (3, 2), (2, 3), (1, 3)))
        )
    ],
    *[
        conv((k, k, c, o), (w, h, c, n), {"p0": p, "p1": p})
        for k, p in [(1, 0), (3, 1), (5, 2)]
        for w, h in [(1, 1), (1, 9), (16, 5)]
        for c, o, n in [(1, 1, 1), (5, 1, 2), (1, 7, 1), (33, 4, 1)]
        if min(w, h) + 2 * p >= k
    ],
    *[
        conv((3, 2, 4, 5), (8, 7, 4, 3), {"s0": 2, "p1": 1}, dtype=t, layouts=layouts)
        for t in TYPES
        for layouts in _ALL_LAYOUTS
    ],
    conv((3, 3, 2, 4), (8, 8, 2)),
    conv((3, 3), (8, 8)),
    conv((2, 2, 3, 4), (2, 2, 3, 2)),
    conv((3, 3, 2, 4), (4, 4, 2, 0), {"p0": 1}),
    conv((3, 3, 0, 4), (4, 4, 0, 2)),
    conv((2, 2, 1, 3), (0, 1), {"p0": 1, "p1": 1}),
    conv((1, 1, 6, 4), (5, 4, 6, 2)),
    conv((1, 1, 6, 4), (5, 4, 6, 2), {"s0": 2, "s1": 2}),
    conv((1, 1, 6, 4), (5, 4, 6, 2), layouts=("plain", "transposed")),
    conv((3, 1, 2, 2), (4, 4, 2, 1), {"p0": 4, "p1": 5, "d0": 4}),
    Case(
        op="conv_2d",
        args=(Arg((3, 3, 2, 2), data=uniform(0.1, 1)), Arg((9, 9, 2), data=among(math.inf, 1, 2))),
        params={"p0": 1, "p1": 1},
    ),
    Case(op="conv_2d", args=(Arg((3, 3, 2, 2)), Arg((9, 9, 2), data=uniform(-1e18, 1e18)))),
]

BY_DEPTH = [
    *[
        conv((kw, kh, 1, 3), (7, 6, 3, 2), slide, op="conv_2d_dw", dtype=TYPES[i % 2])
        for i, (slide, (kw, kh)) in enumerate(
            itertools.product(slides(2, (1, 2), (0, 1))[::3], ((3, 3), (1, 2)))
        )
    ],
    *[
        conv((3, 2, 1, 4), (8, 7, 4, 3), {"p0": 1}, op="conv_2d_dw", dtype=t, layouts=layouts)
        for t in TYPES
        for layouts in _ALL_LAYOUTS
    ],
    conv((3, 3, 1, 9), (17, 34, 9, 1), {"p0": 1, "p1": 1, "s0": 2, "s1": 2}, op="conv_2d_dw"),
    conv((3, 3, 1, 9), (17, 34, 9, 1), op="conv_2d_dw", layouts=("plain", "permuted")),
    conv((3, 3, 1, 32), (20, 8, 32, 1), {"p0": 1, "p1": 1}, op="conv_2d_dw"),
    conv((1, 1, 1, 5), (3, 3, 5), op="conv_2d_dw"),
    conv((5, 5, 1, 1), (1, 1), {"p0": 2, "p1": 2}, op="conv_2d_dw"),
]


def _volume(
    kernel: tuple[int, int, int],
    x: tuple[int, int, int],
    counts: tuple[int, int, int],
    slide: Mapping[str, int],
    **more: Any,
) -> Case:
    channels, batch, filters = counts
    params = dict(slide, n_channels=channels, n_batch=batch, n_channels_out=filters)
    full = (*kernel, channels * filters), (*x, channels * batch)
    return conv(*full, params, op="conv_3d", **more)


VOLUMES = [
    *[
        _volume((2, 1, 3), (4, 4, 5), (2, 1, 3), slide, dtype=TYPES[i % 2])
        for i, slide in enumerate(slides(3, (1, 2), (0, 1))[::5])
    ],
    *[
        _volume(kernel, (5, 4, 6), counts, {"p0": 1, "p2": 1}, dtype=t)
        for t in TYPES
        for kernel in [(1, 1, 1), (3, 3, 3), (3, 1, 2)]
        for counts in [(1, 1, 1), (3, 2, 4), (5, 3, 1)]
    ],
    *[
        _volume((2, 2, 2), (4, 5, 3), (2, 2, 3), {"s1": 2}, dtype=TYPES[i % 3], layouts=layouts)
        for i, layouts in enumerate(_ALL_LAYOUTS)
    ],
    _volume((1, 1, 1), (1, 1, 1), (1, 1, 1), {}),
    _volume((1, 1, 1), (5, 4, 3), (6, 2, 4), {}),
]

SIGNALS = [
    *[
        conv((k, o, c), (n, c), {"s0": s}, op="conv_transpose_1d", dtype=t)
        for t in TYPES
        for n in (1, 6)
        for k in (1, 2, 5)
        for s in (1, 2, 4)
        for c, o in [(1, 1), (3, 4)]
    ],
    *[
        conv((4, 3, 2), (6, 2), {"s0": 2, "p0": p, "d0": d}, op="conv_transpose_1d", dtype=t)
        for t in (tp.F32, tp.F16)
        for p in (0, 1, 3)
        for d in (1, 2, 3)
    ],
    *[
        conv((4, 3, 2), (6, 2), {"s0": 2}, op="conv_transpose_1d", dtype=t, layouts=layouts)
        for t in TYPES
        for layouts in _ALL_LAYOUTS
    ],
    conv((3, 5, 0), (4, 0), op="conv_transpose_1d"),
    conv((50, 4, 2), (21, 2), {"s0": 3}, op="conv_transpose_1d"),
]

EVEN = {"s0": 2, "s1": 2}

SPREAD = [
    *[
        conv((kw, kh, 3, c), (5, 4, c, n), {"s0": s, "s1": s}, op="conv_transpose_2d", dtype=t)
        for t in TYPES
        for kw, kh in [(1, 1), (3, 2), (2, 4)]
        for s in (1, 2, 3)
        for c, n in [(1, 2), (4, 1)]
    ],
    *[
        conv((2, 3, 4, 3), (4, 5, 3, 2), EVEN, op="conv_transpose_2d", layouts=layouts)
        for layouts in _ALL_LAYOUTS
    ],
    conv((2, 2, 3, 1), (1, 1), op="conv_transpose_2d"),
    conv((3, 3, 2, 4), (3, 2, 4), {"s0": 5, "s1": 5}, op="conv_transpose_2d"),
    conv((3, 2, 2, 3), (5, 4, 3), {"s0": 2, "s1": 3}, op="conv_transpose_2d"),
    conv((3, 3, 2, 0), (3, 2, 0), op="conv_transpose_2d"),
]

CASES = [*IMAGES, *BY_DEPTH, *VOLUMES, *SIGNALS, *SPREAD]
