"""Cases of matrix products: every type of weight, repeated weights, layouts, experts."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

import tensorplug as tp
from tensorplug.dtypes import IQ4_XS
from tensorplug.ops.matmul import WEIGHTS
from tensorplug_testing.cases.blocks import SCALED
from tensorplug_testing.cases.case import (
    BYTES,
    Arg,
    Array,
    Case,
    Data,
    among,
    distinct,
    integers,
    partly,
    uniform,
    with_one,
)
from tensorplug_testing.cases.elementwise import REAL

ROUNDED = 5e-4
"""Normalised mean square error with rounded operands, for ops not compared as a `product`."""
BLOCKS = sorted((t for t in WEIGHTS if t.is_block), key=lambda t: t.id)
DECODED = [*REAL, tp.F64, *BLOCKS]


def product(w: Arg, x: Arg, *, always: bool = False) -> Case:
    """`mul_mat` of `w` and `x`."""
    return Case(
        op="mul_mat",
        args=(w, x),
        compare="product",
        representable=x.data is BYTES,
        always=always,
    )


def product_of_experts(w: Arg, x: Arg, ids: Arg) -> Case:
    """`mul_mat_id` of `w` and `x`."""
    args = (w, x, ids)
    return Case(op="mul_mat_id", args=args, compare="product", representable=x.data is BYTES)


TYPES = [
    # Rounding to bytes does not change x, so an error of a percent in one block is always found.
    *[
        product(Arg((512, 9), t), Arg((512, m), data=BYTES), always=True)
        for t in BLOCKS
        for m in (5, 1)
    ],
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
    *[
        product_of_experts(
            Arg((512, 5, 4), t),
            Arg((512, 1, 3), data=BYTES),
            Arg((2, 3), tp.I32, data=distinct(4)),
        )
        for t in BLOCKS
    ],
    *[product_of_experts(*args) for args in _EXPERTS],
    *[
        product_of_experts(
            Arg((256, 3, 4), t), Arg((256, 1, 3), x), Arg((2, 3), tp.I32, data=distinct(4))
        )
        for t, x in [
            *itertools.product(REAL, REAL),
            (tp.F64, tp.F32),
            *[(block, tp.F32) for block in BLOCKS],
        ]
    ],
]


_SPOILED = [t for t in BLOCKS if t in SCALED]
_MANY = 9
"""A number of rows of x that is too large for kernels for few rows."""


def _odd_products() -> Iterator[Case]:
    """NaN and infinity in one row of x or one block of w, which must not change other results."""
    for value, m in [(math.nan, 1), (math.nan, 3), (math.nan, _MANY), (math.inf, 3)]:
        compare = "near" if math.isnan(value) else "not_finite"
        spoilt = with_one(value), with_one(value, "scale")
        kinds = [f"{value:g} in {m} rows of {what}" for what in ("x", "experts' x", "w")]
        for t in [*BLOCKS, *REAL]:
            x, shared = Arg((256, m), data=spoilt[0]), Arg((256, 1, m), data=spoilt[0])
            ids = Arg((2, m), tp.I32, data=distinct(4))
            yield _odd("mul_mat", compare, kinds[0], Arg((256, 33), t), x)
            yield _odd("mul_mat_id", compare, kinds[1], Arg((256, 33, 4), t), shared, ids)
        for t in _SPOILED:
            w = Arg((512, 33), t, data=spoilt[1])
            yield _odd("mul_mat", compare, kinds[2], w, Arg((512, m)))


def _odd(op: str, compare: str, kind: str, *args: Arg) -> Case:
    return Case(op=op, args=args, limit=ROUNDED, compare=compare, kind=kind)


ODD = list(_odd_products())

NO_EXPERT = [
    Case(
        op="mul_mat_id",
        args=(Arg((256, 9, 4), t), Arg((256, x, m)), Arg((2, m), tp.I32, data=partly(distinct(4)))),
        compare="product",
        kind=f"no row for some of {m}",
    )
    for m in (1, 2, 7)
    for t in (tp.F32, tp.Q4_0, tp.F16, tp.Q8_0, tp.Q6_K, IQ4_XS)
    for x in (1, 2)
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


def _walsh_hadamard(_: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Signs by the parity of the bits that row and column share, over the root of the size."""
    i = np.arange(shape[-1])
    shared = i[:, None] & i
    odd = np.array([n.bit_count() & 1 for n in range(shape[-1])])[shared]
    matrix: Array = ((1 - 2 * odd) / math.sqrt(shape[-1])).reshape(shape)
    return matrix


WALSH_HADAMARD = Data("hadamard", _walsh_hadamard)
HINTS = [
    replace(
        product(Arg((n, n), w, data=WALSH_HADAMARD), Arg((n, *rest), x, layout)),
        params={"hint": "hadamard"},
    )
    for n, rest, w, x, layout in [
        (1, (3,), tp.F32, tp.F32, "plain"),
        (2, (3, 2), tp.F32, tp.F32, "plain"),
        (64, (5, 3, 2), tp.F32, tp.F32, "permuted"),
        (64, (3,), tp.F16, tp.F32, "plain"),
        (128, (7, 2), tp.F32, tp.F32, "shifted"),
        (128, (4,), tp.F32, tp.F16, "plain"),
        (512, (2,), tp.F32, tp.F32, "plain"),
    ]
]

CASES = [*OUTER, *TYPES, *SHAPES, *LAYOUTS, *EXPERTS, *ODD, *NO_EXPERT, *HINTS]
