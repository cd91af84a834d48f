"""Cases of attention: shared heads, masks, slopes, caps, sinks, types and layouts of k and v."""

import itertools
import math

import tensorplug as tp
from tensorplug_testing.cases.case import Arg, Case, among, uniform
from tensorplug_testing.cases.elementwise import REAL
from tensorplug_testing.cases.matmul import BLOCKS, ROUNDED
from tensorplug_testing.cases.softmax import MASK, MASK_TYPES

LIMIT = 1e-8
"""Normalised mean square error of attention in f32."""


def attention(
    q: Arg,
    k: Arg,
    v: Arg,
    mask: Arg | None = None,
    sinks: Arg | None = None,
    **params: float,
) -> Case:
    """A case of attention; the default scale is 1 / sqrt(head size)."""
    scale = params.pop("scale", 1 / math.sqrt(q.ne[0]))
    return Case(
        op="flash_attn_ext",
        args=(q, k, v, mask, sinks),
        params={"scale": round(scale, 6), **params},
        limit=LIMIT,
        rounded=ROUNDED,
    )


_Q, _KV = Arg((32, 5, 4, 2)), (32, 11, 2, 2)
_MASK = Arg((11, 5), tp.F16, data=MASK)
_FLAT = Arg((64, 3, 2)), (64, 9, 2)

SHAPES = [
    attention(Arg(q), Arg(k), Arg(v), Arg((k[1], q[1]), data=MASK))
    for q, k, v in [
        ((32, 5, 4, 2), (32, 11, 2, 2), (32, 11, 2, 2)),
        ((32, 5, 4, 2), (32, 11, 1, 1), (32, 11, 1, 1)),
        ((32, 5, 4, 4), (32, 11, 2, 2), (32, 11, 2, 2)),
        ((32, 5, 4), (32, 11, 4), (16, 11, 4)),
        ((33, 1, 6), (33, 70, 3), (7, 70, 3)),
        ((64, 1, 1), (64, 1, 1), (64, 1, 1)),
        ((80, 40, 2), (80, 200, 2), (80, 200, 2)),
        ((8, 3), (8, 4), (8, 4)),
        ((8, 3), (8, 0), (8, 0)),
        ((8, 0, 2), (8, 4, 2), (8, 4, 2)),
    ]
]

MASKS = [
    *[
        attention(_Q, Arg(_KV, tp.F16), Arg(_KV, tp.F16), Arg(ne, t, data=MASK), max_bias=bias)
        for t, ne, bias in itertools.product(
            MASK_TYPES, [(11, 5), (11, 8), (11, 5, 4, 2), (11, 5, 2), (11, 5, 1, 2)], (0.0, 8.0)
        )
    ],
    attention(Arg((32, 5, 12)), Arg((32, 11, 4)), Arg((32, 11, 4)), _MASK, max_bias=4.0),
    attention(_Q, Arg(_KV), Arg(_KV)),
    attention(_Q, Arg(_KV), Arg(_KV), Arg((11, 5), data=uniform(-300, -290))),
    attention(_Q, Arg(_KV), Arg(_KV), Arg((11, 5), tp.F16, "rows", MASK)),
    attention(_Q, Arg(_KV), Arg(_KV), Arg((11, 5), layout="columns", data=MASK)),
    attention(_Q, Arg(_KV), Arg(_KV), Arg((11, 5), data=among(-math.inf)), scale=1.0),
]

EXTRAS = [
    attention(_Q, Arg(_KV, t), Arg(_KV, t), mask, sinks, softcap=cap)
    for t in (tp.F32, tp.F16)
    for mask, sinks, cap in [
        (_MASK, None, 10.0),
        (None, None, 2.0),
        (_MASK, Arg((4,)), 0.0),
        (None, Arg((4,), data=uniform(3, 6)), 0.0),
        (_MASK, Arg((4,)), 5.0),
    ]
] + [
    attention(
        Arg((32, 5, 4), data=uniform(-30, 30)),
        Arg((32, 11, 4), data=uniform(-30, 30)),
        Arg((32, 11, 4)),
    )
]

TYPES = [
    *[attention(_FLAT[0], Arg(_FLAT[1], k), Arg(_FLAT[1], v)) for k in REAL for v in REAL],
    *[
        attention(Arg((256, 2, 2)), Arg((256, 7, 2), t), Arg((256, 7, 2), t))
        for t in (tp.F64, *BLOCKS)
    ],
    attention(_FLAT[0], Arg(_FLAT[1], tp.Q8_0), Arg(_FLAT[1], tp.Q4_0)),
    attention(_FLAT[0], Arg(_FLAT[1], tp.F16), Arg(_FLAT[1], tp.Q8_0)),
]

LAYOUTS = [
    attention(Arg((32, 5, 4, 2), layout=q), Arg(_KV, t, k), Arg(_KV, t, v), _MASK)
    for t in (tp.F32, tp.F16, tp.Q8_0)
    for q, k, v in [
        ("permuted", "permuted", "permuted"),
        ("columns", "rows", "columns"),
        ("rows", "plain", "shifted"),
    ]
] + [
    attention(_Q, Arg(_KV, tp.F16), Arg(_KV, tp.F16, "transposed"), _MASK),
    attention(_Q, Arg(_KV), Arg(_KV), None, Arg((4,), layout="spaced", data=uniform(-9, 9))),
]

CASES = [*SHAPES, *MASKS, *EXTRAS, *TYPES, *LAYOUTS]
