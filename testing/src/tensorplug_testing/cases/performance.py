"""Cases for measuring speed, with shapes of language and image models."""

import tensorplug as tp
from tensorplug.dtypes import Q5_0
from tensorplug_testing.cases.attention import attention
from tensorplug_testing.cases.case import Arg, Case, distinct, integers
from tensorplug_testing.cases.copy import cast, cpy
from tensorplug_testing.cases.matmul import BLOCKS, product, product_of_experts
from tensorplug_testing.cases.rope import rope

_WEIGHTS = (tp.F32, tp.F16, tp.BF16, *BLOCKS)
_K, _N = 2048, 2048

PRODUCTS = [product(Arg((_K, _N), t), Arg((_K, m))) for t in _WEIGHTS for m in (1, 8, 128)]

EXPERTS = [
    product_of_experts(
        Arg((512, 256, 8), t), Arg((512, 1, tokens)), Arg((2, tokens), tp.I32, data=integers(0, 8))
    )
    for t in (tp.F32, tp.F16, tp.Q4_0, tp.Q8_0, tp.Q4_K)
    for tokens in (1, 32)
]

_ROWS = [(4096, 1), (4096, 128), (640, 512)]

ROWS = [
    *[
        Case(op=op, args=(Arg(ne),), params={"eps": 1e-6})
        for op in ("norm", "rms_norm", "l2_norm")
        for ne in _ROWS
    ],
    *[Case(op="soft_max", args=(Arg(ne),)) for ne in [*_ROWS, (32, 32, 128), (32000, 1)]],
    *[Case(op="sum_rows", args=(Arg(ne),)) for ne in _ROWS],
    *[Case(op="argsort", args=(Arg(ne),), compare="order") for ne in [(128, 512), (32000, 1)]],
    Case(op="top_k", args=(Arg((32000, 1)),), params={"k": 40}, compare="set"),
]

ELEMENTS = [
    *[
        Case(op=op, args=(Arg(ne, t), Arg(other, t)))
        for op in ("add", "mul")
        for t in (tp.F32, tp.F16)
        for ne, other in [
            ((4096, 1), (4096, 1)),
            ((4096, 512), (4096, 512)),
            ((4096, 512), (4096,)),
        ]
    ],
    *[Case(op=op, args=(Arg((4096, 512)),)) for op in ("silu", "gelu", "exp", "relu", "sqrt")],
    *[
        Case(op=op, args=(Arg((4096, 512)), Arg((4096, 512))))
        for op in ("swiglu", "geglu", "reglu")
    ],
    Case(op="scale", args=(Arg((4096, 512)),), params={"scale": 2.0}),
]

COPIES = [
    *[cast(Arg((4096, 512)), t) for t in (tp.F16, tp.BF16, tp.Q8_0, tp.Q4_0)],
    *[cast(Arg((4096, 512), t), tp.F32) for t in (tp.F16, tp.Q8_0, tp.Q4_K)],
    cpy(Arg((1024, 1024), layout="transposed"), Arg((1024, 1024))),
    Case(op="cont", args=(Arg((128, 32, 128), layout="permuted"),), compare="exact"),
]

LOOKUPS = [
    *[
        Case(op="get_rows", args=(Arg((640, 4096), t), Arg((n,), tp.I32, data=integers(0, 4096))))
        for t in (tp.F32, tp.F16, tp.Q8_0, Q5_0)
        for n in (1, 512)
    ],
    *[
        Case(
            op="set_rows",
            args=(Arg((1024, 2048), t), Arg((1024, n)), Arg((n,), tp.I64, data=distinct(2048))),
            compare="encoded" if t.is_block else "near",
        )
        for t in (tp.F16, tp.Q8_0)
        for n in (1, 512)
    ],
]

ROTATIONS = [
    rope(Arg((128, 32, tokens)), dims=128, mode=mode)
    for mode in ("normal", "neox")
    for tokens in (1, 128)
]

ATTENTION = [
    attention(Arg((64, tokens, 16)), Arg((64, length, 4), t), Arg((64, length, 4), t))
    for t in (tp.F32, tp.F16, tp.Q8_0)
    for tokens, length in [(1, 512), (1, 4096), (128, 512)]
]

PERFORMANCE: tuple[Case, ...] = (
    *PRODUCTS,
    *EXPERTS,
    *ROWS,
    *ELEMENTS,
    *COPIES,
    *LOOKUPS,
    *ROTATIONS,
    *ATTENTION,
)
