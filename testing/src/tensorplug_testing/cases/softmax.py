"""Cases of softmax with masks, slopes and sinks, and of the diagonal mask."""

import itertools
import math

import numpy as np

import tensorplug as tp
from tensorplug_testing.cases.case import Arg, Array, Case, Data, among, uniform
from tensorplug_testing.cases.diagonal import masks


def _visible(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers, with minus infinity in a third of the columns of each row, never in the first."""
    mask = np.where(rng.random(shape) < 1 / 3, -np.inf, rng.uniform(-1, 1, shape))
    first = mask[..., :1]
    first[...] = rng.uniform(-1, 1, first.shape)
    return mask


MASK = Data("mask", _visible)
MASK_TYPES = (tp.F32, tp.F16)


def soft_max(
    x: Arg,
    mask: Arg | None = None,
    sinks: Arg | None = None,
    *,
    in_place: bool = False,
    **params: float,
) -> Case:
    """`soft_max` of `x`."""
    return Case(op="soft_max", args=(x, mask, sinks), params=params, limit=1e-6, in_place=in_place)


_X = Arg((7, 5, 4, 2), data=uniform(-5, 5))

PLAIN = [
    *[soft_max(Arg(ne, data=uniform(-5, 5))) for ne in [(7, 5, 4, 2), (1, 3), (1000, 3), (33,)]],
    *[
        soft_max(Arg((7, 5, 4, 2), layout=layout, data=uniform(-5, 5)))
        for layout in ("permuted", "transposed", "rows", "columns")
    ],
    soft_max(_X, scale=0.125),
    soft_max(Arg((64, 3), data=uniform(-1e4, 1e4))),
    soft_max(Arg((64, 3), data=uniform(-3e38, 3e38))),
    soft_max(Arg((24, 3), data=among(-math.inf, 0.0, 1.0, 2.0))),
    soft_max(_X, in_place=True),
    soft_max(Arg((7, 0))),
]

MASKED = [
    *[
        soft_max(Arg(_X.ne, layout=layout), Arg(ne, dtype, data=MASK), scale=0.7, max_bias=bias)
        for dtype, ne, bias, layout in itertools.product(
            MASK_TYPES,
            [(7, 5), (7, 9), (7, 5, 4, 2), (7, 5, 2), (7, 5, 1, 2)],
            (0.0, 8.0),
            ("plain", "permuted"),
        )
    ],
    *[
        soft_max(Arg((7, 5, heads)), Arg((7, 5), data=MASK), max_bias=8.0)
        for heads in (1, 2, 3, 8, 12)
    ],
    *[
        soft_max(_X, Arg((7, 5), dtype, layout, MASK))
        for dtype in MASK_TYPES
        for layout in ("rows", "columns")
    ],
    soft_max(_X, Arg((7, 5), data=MASK), scale=2.0, in_place=True),
    soft_max(_X, Arg((7, 5), data=uniform(-300, -290))),
]

SINKS = [
    soft_max(_X, None, Arg((4,))),
    soft_max(_X, Arg((7, 5), tp.F16, data=MASK), Arg((4,), data=uniform(5, 9))),
    soft_max(_X, Arg((7, 5), data=MASK), Arg((4,)), scale=0.3, max_bias=4.0),
    soft_max(Arg((24, 3, 2), data=uniform(-90, -80)), None, Arg((2,))),
    soft_max(_X, None, Arg((4,), layout="spaced", data=uniform(-9, 9))),
    soft_max(Arg((7, 5, 4, 2), layout="spaced"), Arg((7, 5), layout="spaced", data=MASK)),
]

CASES = [*PLAIN, *MASKED, *SINKS, *masks("diag_mask_inf")]
