"""Cases of matrix products: every type of weight, repeated weights, layouts, experts."""

import itertools
import math

import tensorplug as tp
from tensorplug.ops.matmul import WEIGHTS
from tensorplug.testing.cases.case import Arg, Case, among, distinct, integers, uniform
from tensorplug.testing.cases.elementwise import REAL

LIMIT = 5e-4
BLOCKS = sorted((t for t in WEIGHTS if t.is_block), key=lambda t: t.id)
DECODED = [*REAL, tp.F64, *BLOCKS]


def product(w: Arg, x: Arg) -> Case:
    """`mul_mat` of `w` and `x`."""
    return Case(op="mul_mat", args=(w, x), limit=LIMIT)


TYPES = [
    *[product(Arg((256, 9), t), Arg((256, m))) for t in DECODED for m in (1, 5)],
    *[product(Arg((33, 6), a), Arg((33, 4), b)) for a in REAL for b in REAL],
    *[product(Arg((256, 6), t), Arg((256, 4), x)) for t in (tp.Q8_0, tp.Q4_K) for x in REAL[1:]],
    *[product(Arg((256, 3, 2), t, "rows"), Arg((256, 2, 4))) for t in BLOCKS],
]

SHAPES = [
    product(Arg(w, t), Arg(x))
    for t in (tp.F32, tp.F16, tp.Q8_0)
    for w, x in [
        ((32, 5, 2), (32, 3, 4)),
        ((32, 5, 2, 2), (32, 3, 4, 6)),
        ((32, 5), (32, 3, 4, 2)),
        ((32, 1), (32, 1)),
        ((32, 1), (32, 7)),
        ((32, 7), (32, 1, 3)),
        ((320, 130), (320, 70)),
        ((32, 5), (32,)),
        ((32, 5), (32, 0)),
        ((32, 0), (32, 3)),
    ]
] + [
    product(Arg((1, 5)), Arg((1, 3))),
    product(Arg((37, 41, 3)), Arg((37, 1, 3))),
    product(Arg((32, 5), data=uniform(0.1, 1)), Arg((32, 9), data=among(1.0, 2.0, math.inf))),
]

LAYOUTS = [
    product(Arg((32, 5, 2), t, w), Arg((32, 3, 4), layout=x))
    for t in (tp.F32, tp.F16, tp.Q4_0)
    for w, x in [
        ("permuted", "plain"),
        ("rows", "columns"),
        ("columns", "permuted"),
        ("shifted", "rows"),
        ("plain", "transposed"),
        ("permuted", "permuted"),
    ]
] + [
    product(Arg((32, 5)), Arg((32, 2, 3, 2), layout=layout))
    for layout in ("permuted", "rows", "columns", "transposed")
]

_EXPERTS = [
    (Arg((64, 9, 4)), Arg((64, 1, 5)), Arg((2, 5), tp.I32, data=distinct(4))),
    (Arg((64, 9, 4)), Arg((64, 2, 5)), Arg((2, 5), tp.I32, data=distinct(4))),
    (Arg((64, 9, 4)), Arg((64, 2, 5)), Arg((4, 5), tp.I32, data=distinct(4))),
    (Arg((64, 9, 4)), Arg((64, 1, 1)), Arg((1, 1), tp.I32, data=distinct(4))),
    (Arg((64, 9, 8)), Arg((64, 3, 17)), Arg((3, 17), tp.I32, data=integers(0, 2))),
    (
        Arg((64, 9, 4), layout="rows"),
        Arg((64, 2, 5), layout="permuted"),
        Arg((2, 5), tp.I32, "columns", distinct(4)),
    ),
]

EXPERTS = [
    *[Case(op="mul_mat_id", args=args, limit=LIMIT) for args in _EXPERTS],
    *[
        Case(
            op="mul_mat_id",
            args=(
                Arg((256, 3, 4), t),
                Arg((256, 1, 3), x),
                Arg((2, 3), tp.I32, data=distinct(4)),
            ),
            limit=LIMIT,
        )
        for t, x in [
            *itertools.product(REAL, REAL),
            (tp.F64, tp.F32),
            *[(block, tp.F32) for block in BLOCKS],
        ]
    ],
]


_ZEROS, _LARGE = among(0.0, -0.0), uniform(-6e4, 6e4)
_ODD = among(1.0, -2.0, math.inf, math.nan)


def outer(a: Arg, b: Arg) -> Case:
    """`out_prod` of `a` and `b`."""
    return Case(op="out_prod", args=(a, b))


_OUTER_LAYOUTS = ("plain", "permuted", "transposed", "rows", "columns", "shifted", "spaced")

OUTER = [
    *[
        outer(Arg((m, k), t), Arg((n, k)))
        for t in DECODED
        for m, n, k in [(256, 1, 1), (256, 16, 3), (512, 3, 7)]
    ],
    *[
        outer(Arg((m, k, *batch), t), Arg((n, k, *map(int.__mul__, batch, repeats))))
        for t in (tp.F32, tp.F16, tp.Q4_0)
        for m, n, k in [(256, 16, 16), (32, 1, 5), (64, 7, 1)]
        for batch in [(1, 1), (3, 1), (2, 3)]
        for repeats in itertools.product((1, 2), repeat=2)
    ],
    *[
        outer(Arg((9, 5, 2, 3), t, a), Arg((7, 5, 2, 3), layout=b))
        for t in (tp.F32, tp.F16, tp.BF16)
        for a, b in itertools.product(_OUTER_LAYOUTS, _OUTER_LAYOUTS[:5])
    ],
    *[outer(Arg((m, k)), Arg((n, k))) for m in (1, 8, 33) for n in (1, 5) for k in (1, 2, 31)],
    *[
        outer(Arg((256, 5, 2, 3), t, a), Arg((3, 5, 4, 3), layout=b))
        for t in BLOCKS
        for a, b in [
            ("rows", "transposed"),
            ("permuted", "rows"),
            ("columns", "plain"),
            ("shifted", "spaced"),
        ]
    ],
    *[
        outer(Arg((256, k, 1, 3), t), Arg((n, k, 2, 3)))
        for t in BLOCKS
        for n, k in [(16, 1), (1, 16), (5, 33)]
    ],
    *[
        outer(Arg((9, 3), t, data=data), Arg((5, 3), data=data))
        for t in REAL
        for data in (_ZEROS, _LARGE, _ODD)
    ],
    *[outer(Arg((m, k), t), Arg((n, k))) for t in REAL for m, n, k in [(9, 5, 0), (9, 0, 3)]],
]

CASES = [*OUTER, *TYPES, *SHAPES, *LAYOUTS, *EXPERTS]
