"""Cases too large for one tile, one chunk or one thread."""

import math
from typing import Any

import numpy as np

import tensorplug as tp
from tensorplug.dtypes import Q5_0
from tensorplug_testing.cases.attention import attention
from tensorplug_testing.cases.case import Arg, Array, Case, Data, among, distinct, integers, uniform
from tensorplug_testing.cases.copy import cast, cpy
from tensorplug_testing.cases.elementwise import EXPERT, binary, constant
from tensorplug_testing.cases.matmul import product, product_of_experts
from tensorplug_testing.cases.rope import rope
from tensorplug_testing.cases.rows import get, put
from tensorplug_testing.cases.softmax import MASK, soft_max


def _late(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A mask whose first row sees only the last columns, and whose last row sees nothing."""
    mask = rng.uniform(-1, 1, shape)
    mask[..., 0, :-100] = -np.inf
    mask[..., -1, :] = -np.inf
    return mask


LATE = Data("late", _late)
_WIDE = (1000, 150)
_DEEP = (60, 50, 25, 2)

ELEMENTS = [
    binary("add", Arg(_WIDE), Arg((1000,))),
    binary("mul", Arg(_WIDE, tp.F16), Arg(_WIDE, tp.BF16)),
    binary("sub", Arg(_DEEP, layout="permuted"), Arg((60, 1, 25, 1))),
    binary("div", Arg(_DEEP, tp.BF16, "transposed"), Arg(_DEEP)),
    binary("add", Arg((40, 50, 20, 4)), Arg((20, 25, 10, 2))),
    binary("mul", Arg(_WIDE), Arg((1, 150)), in_place=True),
    constant("scale", Arg(_WIDE, tp.F16, "rows"), {"scale": 1.5, "bias": -0.5}),
    Case(
        op="add_id",
        args=(Arg((300, 20, 30)), Arg((300, 6)), Arg((20, 30), tp.I32, data=EXPERT)),
        each=True,
    ),
    *[
        Case(op=op, args=(Arg(_WIDE, dtype, layout, uniform(-4, 4)),), each=True)
        for op in ("gelu", "gelu_erf", "silu", "softplus", "round")
        for dtype, layout in [(tp.F32, "plain"), (tp.F16, "rows"), (tp.BF16, "transposed")]
    ],
    *[
        Case(op=op, args=(Arg((1000, 300), dtype, layout, uniform(-4, 4)),), each=True)
        for op in ("swiglu", "geglu")
        for dtype, layout in [(tp.F32, "plain"), (tp.F16, "columns")]
    ],
]

_OF_ROWS: list[tuple[str, dict[str, Any]]] = [
    ("sum", {}),
    ("mean", {}),
    ("cumsum", {}),
    ("norm", {"eps": 1e-5}),
    ("rms_norm", {"eps": 1e-6}),
    ("l2_norm", {"eps": 1e-12}),
    ("group_norm", {"groups": 4}),
]

ROWS = [
    *[
        Case(op=op, args=(arg,), params=params)
        for op, params in _OF_ROWS
        for arg in (Arg(_DEEP), Arg(_WIDE, layout="transposed"), Arg((200_000,)))
    ],
    Case(op="rms_norm", args=(Arg(_WIDE),), in_place=True),
    Case(op="argmax", args=(Arg(_WIDE, layout="rows"),), compare="exact"),
    Case(op="argsort", args=(Arg(_WIDE),), params={"descending": True}, compare="order"),
    Case(op="top_k", args=(Arg((50_000, 3)),), params={"k": 40}, compare="set"),
    soft_max(Arg((300, 40, 8, 2)), Arg((300, 40), tp.F16, data=MASK), scale=0.3, max_bias=8.0),
    soft_max(Arg((300, 40, 8, 2), layout="permuted"), Arg((300, 64), data=MASK), Arg((8,))),
    soft_max(Arg((70_000, 3)), in_place=True),
    *[
        rope(Arg((128, 8, 150), dtype, layout), dims=dims, mode=mode)
        for mode in ("normal", "neox")
        for dtype, dims, layout in [(tp.F32, 128, "plain"), (tp.F16, 96, "permuted")]
    ],
]

PRODUCTS = [
    *[
        product(Arg((1024, 700), dtype), Arg((1024, m)))
        for dtype in (tp.F32, tp.F16, tp.BF16, tp.Q8_0, tp.Q4_K)
        for m in (1, 40)
    ],
    product(Arg((512, 400, 4), tp.F16, "permuted"), Arg((512, 30, 8), layout="permuted")),
    product_of_experts(
        Arg((512, 300, 6), tp.Q4_0), Arg((512, 1, 50)), Arg((3, 50), tp.I32, data=distinct(6))
    ),
    attention(Arg((64, 64, 8)), Arg((64, 3000, 2)), Arg((64, 3000, 2)), Arg((3000, 64), data=MASK)),
    attention(
        Arg((64, 2, 4)),
        Arg((64, 17_000, 2), tp.F16),
        Arg((64, 17_000, 2), tp.F16),
        Arg((17_000, 2), tp.F16, data=MASK),
        Arg((4,)),
        softcap=5.0,
    ),
    *[
        attention(
            Arg((64, 3, 16)),
            Arg((64, 5000, 8), dtype),
            Arg((64, 5000, 8), dtype),
            Arg((5000, 3, heads), tp.F16, data=LATE),
            sinks,
            max_bias=bias,
        )
        for dtype, heads, sinks, bias in [
            (tp.F32, 16, None, 8.0),
            (tp.F16, 4, Arg((16,)), 0.0),
            (tp.Q8_0, 1, None, 0.0),
        ]
    ],
    attention(
        Arg((64, 300, 4, 2)),
        Arg((64, 2500, 1, 1), tp.Q8_0),
        Arg((32, 2500, 1, 1), tp.F16, "permuted"),
        Arg((2500, 300), tp.F16, data=MASK),
        max_bias=4.0,
    ),
]

COPIES = [
    *[
        Case(op="cont", args=(Arg(_WIDE, dtype, "transposed"),), compare="exact")
        for dtype in (tp.F32, tp.F16, tp.I64)
    ],
    cast(Arg(_WIDE, tp.F16, "rows"), tp.F32),
    cast(Arg(_WIDE, tp.F16, data=among(0.0, 1.0, 6e-8, math.inf, -math.inf, math.nan)), tp.F32),
    cast(Arg((1024, 150), tp.Q4_0), tp.F16),
    cast(Arg((1024, 150)), tp.Q8_0),
    cpy(Arg(_DEEP, layout="permuted"), Arg(_DEEP, tp.BF16, "transposed")),
    cpy(Arg((1024, 150), tp.Q6_K), Arg((1024, 150), layout="rows")),
    get(Arg((1024, 300), tp.F16), Arg((200,), tp.I32, data=integers(0, 300))),
    get(Arg((1024, 300), Q5_0), Arg((200,), tp.I32, data=integers(0, 300))),
    put(Arg((1024, 300), tp.Q4_0), Arg((1024, 200)), Arg((200,), tp.I64, data=distinct(300))),
    put(Arg((1024, 300), tp.F16), Arg((1024, 200)), Arg((200,), tp.I64, data=distinct(300))),
]

CASES = [*ELEMENTS, *ROWS, *PRODUCTS, *COPIES]
