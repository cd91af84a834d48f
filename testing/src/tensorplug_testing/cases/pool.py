"""Cases of pooling: windows, steps, paddings (fractions too), layouts, extremes."""

import itertools
import math
from typing import Any

import tensorplug as tp
from tensorplug_testing.cases.case import Arg, Case, among, integers, uniform

_TYPES = (tp.F32, tp.F16)
_KINDS = ("max", "avg")
_LAYOUTS = ("plain", "permuted", "transposed", "rows", "columns", "shifted")


def pool(op: str, x: Arg, **params: Any) -> Case:
    """Pooling of `x`, with every element compared."""
    return Case(op=op, args=(x,), params=params, each=True)


SIGNALS = [
    *[
        pool("pool_1d", Arg(ne, t), kind=kind, k0=k, s0=s, p0=p)
        for t, kind in itertools.product(_TYPES, _KINDS)
        for ne in [(10, 3, 2, 1), (11, 1, 3, 2), (8,)]
        for k, s, p in itertools.product((1, 3), (1, 2), (0, 1))
    ],
    *[
        pool("pool_1d", Arg((13, 4, 3, 2), t, layout), kind=kind, k0=4, s0=3, p0=2)
        for t, kind, layout in itertools.product(_TYPES, _KINDS, _LAYOUTS)
    ],
    *[
        pool("pool_1d", Arg((6, 5), data=data), kind=kind, k0=2, s0=2)
        for kind in _KINDS
        for data in (
            among(-math.inf, 1.0, 2.0),
            among(math.inf, 1.0, 2.0),
            among(math.nan, 1.0),
            uniform(-1e30, 1e30),
            uniform(-3, -1),
        )
    ],
    pool("pool_1d", Arg((1,)), kind="max", k0=1),
    pool("pool_1d", Arg((2, 3)), kind="avg", k0=9, s0=1, p0=4),
    pool("pool_1d", Arg((2, 3)), kind="max", k0=2, s0=1, p0=5),
    pool("pool_1d", Arg((5, 0)), kind="avg", k0=2),
]

IMAGES = [
    *[
        pool("pool_2d", Arg((10, 9, 2, n), t), kind=kind, k0=k0, k1=k1, s0=s0, s1=s1, p0=p0, p1=p1)
        for i, (k0, k1, s0, s1, p0, p1) in enumerate(
            itertools.product((1, 3), (1, 3), (1, 2), (1, 2), (0, 1), (0, 1))
        )
        for kind in _KINDS
        for t, n in [(_TYPES[i % 2], 1), (_TYPES[(i // 2 + 1) % 2], 2)]
    ],
    *[
        pool("pool_2d", Arg((7, 8, 3, 2), t, layout), kind=kind, k0=2, k1=4, s0=2, p0=1, p1=2)
        for t, kind, layout in itertools.product(_TYPES, _KINDS, _LAYOUTS)
    ],
    *[
        pool("pool_2d", Arg((7, 6, 2)), kind=kind, k0=3, k1=2, s0=s, s1=s, p0=p0, p1=p1)
        for kind in _KINDS
        for s in (1, 2)
        for p0, p1 in [(0.5, 0.5), (1.5, 0.0), (0.25, 2.75)]
    ],
    *[
        pool("pool_2d", Arg((6, 5, 2), data=data), kind=kind, k0=2, k1=2, p0=1)
        for kind in _KINDS
        for data in (
            among(-math.inf, 1.0, 2.0),
            among(math.inf, 1.0, 2.0),
            among(math.nan, 1.0),
            uniform(-3, -1),
        )
    ],
    pool("pool_2d", Arg((1,)), kind="max", k0=1, k1=1),
    pool("pool_2d", Arg((5, 4)), kind="avg", k0=5, k1=4, s0=7, s1=9),
    pool("pool_2d", Arg((2, 2, 3)), kind="max", k0=3, k1=3, p0=3, p1=2),
    pool("pool_2d", Arg((2, 2, 0)), kind="max", k0=2, k1=2),
]


def _back(forward: Case, layout: str = "plain") -> Case:
    """The gradient of a pooling."""
    (x,) = forward.args
    assert x is not None
    pooled = tp.apply(tp.ops.op("pool_2d"), tp.input("", x.ne[::-1], x.dtype), **forward.params)
    grad = Arg(pooled.ne[: pooled.rank], layout=layout)
    return Case(op="pool_2d_back", args=(grad, x), params=forward.params)


_DEFINED = [case for case in IMAGES if case.op == "pool_2d" and "nan" not in case.id]
BACK = [
    *[_back(case) for case in _DEFINED[::2]],
    *[
        _back(pool("pool_2d", Arg((7, 8, 3, 2)), kind=kind, k0=3, k1=2, s0=2, p0=1), layout)
        for kind, layout in itertools.product(_KINDS, _LAYOUTS[1:])
    ],
    *[
        _back(pool("pool_2d", Arg((8, 7, 2), t, data=data), kind="max", k0=3, k1=2, p1=1))
        for t in _TYPES
        for data in (integers(0, 3), among(-math.inf, 0.0))
    ],
]

CASES = [*SIGNALS, *IMAGES, *BACK]
