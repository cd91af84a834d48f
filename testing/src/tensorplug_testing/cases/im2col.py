"""Cases of windows copied into rows, and of the sums back."""

import itertools
from collections.abc import Mapping
from typing import Any

import tensorplug as tp
from tensorplug_testing.cases.case import Arg, Case
from tensorplug_testing.cases.conv import LAYOUTS, TYPES, slides

_PIXELS = (tp.F32, tp.F16)
_RESULTS = ("f32", "f16", "bf16")
_PAIRS = list(itertools.product(_PIXELS, _RESULTS))


def im2col(
    kernel: tuple[int, ...],
    x: tuple[int, ...],
    params: Mapping[str, Any] | None = None,
    *,
    kind: tuple[tp.DType, str] = (tp.F32, "f32"),
    layout: str = "plain",
    filters: tp.DType = tp.F32,
) -> Case:
    """Windows of `x`, of type `kind[0]`, as rows of `kind[1]`."""
    op = "im2col_3d" if params and "n_channels" in params else "im2col"
    args = (Arg(kernel, filters), Arg(x, kind[0], layout))
    return Case(op=op, args=args, params={**(params or {}), "to": kind[1]})


_FLAT: Mapping[str, Any] = {"is_2d": False}

SIGNALS = [
    *[
        im2col((k, 3, 2), (9, 3, n), {**_FLAT, "s0": s, "p0": p, "d0": d}, kind=_PAIRS[i % 6])
        for i, (k, n, s, p, d) in enumerate(
            itertools.product((1, 3), (1, 2), (1, 3), (0, 2), (1, 3))
        )
    ],
    *[
        im2col((3, 4), (20, 4, 3), {**_FLAT, "p0": 1}, kind=kind, layout=layout)
        for kind in _PAIRS
        for layout in LAYOUTS
    ],
    im2col((17, 2), (40, 2, 2), {**_FLAT, "p0": 8}),
    im2col((24, 1), (48, 1), {**_FLAT, "s0": 8}, kind=(tp.F32, "f16")),
    im2col((1,), (1,), _FLAT),
    # The parameters of dimension 1 are for images: ggml gives zeros for them here.
    im2col((3, 2), (9, 2), {**_FLAT, "s1": 0, "p1": 0, "d1": 0}),
]

IMAGES = [
    *[
        im2col((kw, kh, 2, 3), (7, 6, 2, 2), slide, kind=_PAIRS[i % 6], filters=TYPES[i % 3])
        for i, (slide, (kw, kh)) in enumerate(
            itertools.product(slides(2, (1, 3), (0, 2))[::2], ((3, 2), (1, 3)))
        )
    ],
    *[
        im2col((3, 2, 4), (8, 7, 4, 3), {"s0": 2, "p1": 1}, kind=kind, layout=layout)
        for kind in _PAIRS
        for layout in LAYOUTS
    ],
    *[
        im2col((3, 3, c), (12, 12, c, n), {"p0": 1, "p1": 1}, kind=(tp.F32, "f16"))
        for c, n in [(1, 32), (2, 9), (32, 2)]
    ],
    im2col((1, 1), (1, 1)),
    im2col((20, 2), (30, 3), {"p1": 1}),
    im2col((3, 3, 2), (4, 4, 2, 0)),
]

VOLUMES = [
    *[
        im2col((3, 2, 2, 2), (6, 5, 7, 2), {**slide, "n_channels": 2}, kind=_PAIRS[i % 6])
        for i, slide in enumerate(slides(3, (1, 3), (0, 3))[::3])
    ],
    *[
        im2col((2, 3, 2, 3 * o), (5, 4, 6, 3 * n), {"n_channels": 3, "p0": 1, "s2": 2}, kind=kind)
        for o, n in [(1, 1), (2, 1), (1, 3)]
        for kind in _PAIRS
    ],
    *[
        im2col((2, 2, 2, 2), (5, 4, 3, 4), {"n_channels": 2}, kind=kind, layout=layout)
        for kind in _PAIRS
        for layout in LAYOUTS[1:]
    ],
    im2col((1, 1, 1, 1), (1, 1, 1, 1), {"n_channels": 1}, filters=tp.F16),
    im2col((1, 1, 1, 1), (3, 1, 2, 5), {"n_channels": 1}, filters=tp.BF16),
]


def _back(
    kernel: tuple[int, ...],
    ne: tuple[int, ...],
    slide: Mapping[str, Any],
    *,
    layout: str = "plain",
    filters: tp.DType = tp.F32,
) -> Case:
    """The gradient of an image of sizes `ne`."""
    filled = (tp.input("", sizes[::-1], tp.F32) for sizes in (kernel, ne))
    like = tp.apply(tp.ops.op("im2col"), *filled, **slide)
    grad = Arg(like.ne[: like.rank], layout=layout)
    return Case(op="im2col_back", args=(grad, Arg(kernel, filters)), params={"ne": ne, **slide})


BACK = [
    *[
        _back((kw, kh, 2, 3), (7, 6, 2, 2), slide, filters=TYPES[i % 3])
        for i, (slide, (kw, kh)) in enumerate(
            itertools.product(slides(2, (1, 3), (0, 2))[::3], ((3, 2), (1, 3)))
        )
    ],
    *[
        _back((k, 3), (9, 3, n), {**_FLAT, "s0": s, "p0": p, "d0": d})
        for k, n, s, p, d in itertools.product((1, 3), (1, 2), (1, 2), (0, 2), (1, 2))
    ],
    *[_back((3, 2, 4), (8, 7, 4, 2), {"s0": 2, "p1": 1}, layout=layout) for layout in LAYOUTS],
    *[_back((3, 2), (8, 2, 3), {**_FLAT, "p0": 1}, layout=layout) for layout in LAYOUTS],
    _back((1, 1), (1, 1), {}),
]

FOLDED = [
    *[
        Case(op="col2im_1d", args=(Arg((k * oc, n), t),), params={"s0": s, "oc": oc, "p0": p})
        for i, (n, k, s, oc, p) in enumerate(
            itertools.product((1, 7), (3, 4, 8), (1, 2, 4), (1, 3), (0, 1))
        )
        for t in (TYPES[i % 3], TYPES[(i + 1) % 3])
    ],
    *[
        Case(op="col2im_1d", args=(Arg((12, 5), t, layout),), params={"s0": 2, "oc": 3, "p0": 1})
        for t in TYPES
        for layout in LAYOUTS[1:]
    ],
    Case(
        op="col2im_1d",
        args=(
            Arg(
                (1, 1),
            ),
        ),
        params={"oc": 1},
    ),
    Case(
        op="col2im_1d",
        args=(
            Arg(
                (16, 9),
            ),
        ),
        params={"s0": 11, "oc": 2},
    ),
]

CASES = [*SIGNALS, *IMAGES, *VOLUMES, *BACK, *FOLDED]
