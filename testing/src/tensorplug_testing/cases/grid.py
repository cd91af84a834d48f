"""Cases of all families over wider grids of shapes, repetitions, layouts and types.

The grids follow those of ggml's test program, so a device that passes ggml's tests has seen all
these kinds of cases. Sizes are smaller where only the number of sizes matters.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import tensorplug as tp
from tensorplug.dtypes import IQ2_XXS, MXFP4
from tensorplug.ops.glu import GLU
from tensorplug.ops.unary import UNARY
from tensorplug_cpu.reference.blocks import ENCODED
from tensorplug_testing.cases.attention import attention
from tensorplug_testing.cases.case import Arg, Case, Data, distinct, integers, uniform
from tensorplug_testing.cases.copy import cast, cpy
from tensorplug_testing.cases.elementwise import BINARY, REAL, binary
from tensorplug_testing.cases.matmul import BLOCKS, product, product_of_experts
from tensorplug_testing.cases.rope import rope
from tensorplug_testing.cases.rows import get, put
from tensorplug_testing.cases.softmax import MASK, soft_max

Ne = tuple[int, ...]
LAYOUTS = ("plain", "permuted", "transposed", "rows", "columns", "shifted")
BLOCK_LAYOUTS = ("plain", "permuted", "rows", "columns", "shifted")


def _times(ne: Ne, repeats: Ne) -> Ne:
    return tuple(n * r for n, r in zip(ne, repeats, strict=True))


# --- element by element ------------------------------------------------------------------------

_REPEATS = [
    ((1, 1, 8, 1), (1, 1, 1, 1)),
    ((1, 1, 1, 1), (16, 1, 1, 1)),
    ((1, 1, 32, 4), (32, 1, 1, 1)),
    ((16, 10, 1, 1), (1, 1, 1, 1)),
    *[((10, 5, 4, 3), repeats) for repeats in itertools.product((1, 2), repeat=4)],
    ((10, 5, 1, 2), (1, 1, 2, 1)),
    ((64, 3, 1, 1), (1, 1, 5, 7)),
    ((1, 24, 1, 1), (12, 1, 1, 3)),
]

ARITHMETIC = [
    binary(op, Arg(_times(ne, repeats), a), Arg(ne, b, data=uniform(0.5, 2)))
    for op in BINARY
    for ne, repeats in _REPEATS
    for a, b in [(tp.F32, tp.F32), (tp.F16, tp.F16), (tp.F16, tp.F32), (tp.BF16, tp.F32)]
]

FUNCTIONS = [
    Case(op=op, args=(Arg(ne, t, layout, uniform(0.01, 9)),), each=True)
    for op in UNARY
    for t in (tp.F32, tp.F16)
    for ne, layout in [
        ((128, 2, 2, 2), "plain"),
        ((5, 7, 11, 3), "plain"),
        ((128, 2, 2, 2), "rows"),
        ((5, 7, 11, 3), "permuted"),
        ((1, 513), "columns"),
    ]
    if t is tp.F32 or op not in ("exp", "expm1")
]

GATES = [
    Case(op=op, args=args, params={"swapped": True} if swapped else {})
    for op in (*GLU, "swiglu_oai")
    for t, layout, swapped in itertools.product(
        (tp.F32, tp.F16), ("plain", "rows", "permuted"), (False, True)
    )
    for args in [
        (Arg((128, 2, 2, 2), t, layout),),
        (Arg((10, 7, 11, 3), t, layout),),
        *([] if swapped else [(Arg((64, 2, 2, 2), t, layout), Arg((64, 2, 2, 2), t, layout))]),
    ]
]

# --- rows --------------------------------------------------------------------------------------

_ROW_LENGTHS = (1, 2, 3, 31, 32, 33, 64, 127, 256, 511, 1025)

STATISTICS = [
    *[
        Case(op=op, args=(Arg((n, *rest), layout=layout, data=uniform(0.5, 1.5)),))
        for op in ("norm", "rms_norm", "l2_norm", "sum_rows", "mean", "cumsum")
        for n in _ROW_LENGTHS
        for rest, layout in [((5,), "plain"), ((2, 3), "permuted"), ((3, 2, 2), "rows")]
        if n > 1 or op != "norm"
    ],
    *[
        Case(op=op, args=(Arg((64, 5, 4, 3)),), params={"eps": eps})
        for op in ("norm", "rms_norm", "l2_norm")
        for eps in (0.0, 1e-6, 1e-4, 1e-1, 1.0)
    ],
]

ORDERS = [
    *[
        Case(
            op="argsort",
            args=(Arg((n, rows), layout=layout),),
            params={"descending": descending},
            compare="order",
        )
        for n in (*_ROW_LENGTHS, 2048)
        for rows, layout in [(1, "plain"), (3, "plain"), (3, "rows")]
        for descending in (False, True)
    ],
    *[
        Case(op="top_k", args=(Arg((n, rows), data=data),), params={"k": k}, compare="set")
        for n in (*_ROW_LENGTHS, 2048)
        for k in (1, 2, 3, 7, 15, 32, 100)
        for rows, data in [(1, uniform(-1, 1)), (3, uniform(-1, 1)), (2, integers(0, 9))]
        if k <= n
    ],
    *[
        Case(op="argmax", args=(Arg((n, rows), layout=layout),), compare="exact")
        for n in _ROW_LENGTHS
        for rows, layout in [(1, "plain"), (10, "plain"), (3, "columns")]
    ],
]


def _shares() -> Iterator[Case]:
    shapes: list[Ne] = [(16, 4, 1, 1), (15, 3, 2, 1), (33, 2, 4, 3), (1, 5, 2, 2), (257, 2, 2, 1)]
    for ne, masked, sinks, scale in itertools.product(
        shapes, (None, tp.F32, tp.F16), (False, True), (1.0, 0.1)
    ):
        x = Arg(ne, data=uniform(-5, 5))
        sink = Arg((ne[2],)) if sinks else None
        if masked is None:
            yield soft_max(x, None, sink, scale=scale)
            continue
        for mask, bias in itertools.product([ne[:2], (*ne[:2], 1, ne[3])], (0.0, 8.0)):
            yield soft_max(x, Arg(mask, masked, data=MASK), sink, scale=scale, max_bias=bias)


SHARES = list(_shares())


def _turns() -> Iterator[Case]:
    for mode, dtype, dims, heads in itertools.product(
        ("normal", "neox"), (tp.F32, tp.F16), (16, 40, 64, 80), (1, 6)
    ):
        variants: list[tuple[dict[str, Any], bool, int]] = [
            ({}, False, dims),
            ({}, True, dims),
            ({"scale": 0.7, "attn_factor": 1.4}, False, dims),
            ({"ext_factor": 0.75, "original_context": 512, "scale": 0.5}, False, dims),
            ({}, False, 2 * dims),
        ]
        for extra, factors, width in variants:
            yield rope(
                Arg((width, heads, 3, 2), dtype), mode=mode, dims=dims, factors=factors, **extra
            )
    for mode, dtype, layout, sections in itertools.product(
        ("mrope", "imrope"),
        (tp.F32, tp.F16),
        ("plain", "permuted"),
        [(8, 4, 4, 0), (6, 5, 5, 0), (2, 2, 2, 2), (16, 0, 0, 0)],
    ):
        yield rope(Arg((40, 3, 4), dtype, layout), mode=mode, dims=32, sections=sections)


TURNS = list(_turns())

# --- copies ------------------------------------------------------------------------------------


def _values(dtype: tp.DType) -> Data:
    return integers(-100, 100) if dtype.is_integer else uniform(-1, 1)


_KEPT: list[Ne] = [(256, 4, 3, 1), (64, 1, 5, 2), (1, 7, 2, 3), (33, 2, 1, 1)]

COPIES = [
    *[
        cpy(Arg(ne, a, x, _values(a)), Arg(ne, b, y, _values(b)))
        for a, b in itertools.product((tp.F32, tp.F16, tp.BF16, tp.I32), repeat=2)
        for ne in _KEPT
        for x, y in [
            *[("plain", "plain"), ("permuted", "plain"), ("plain", "permuted")],
            *[("transposed", "rows"), ("columns", "shifted")],
        ]
    ],
    *[
        cast(Arg((256, 2, 3), a, layout), b)
        for a in REAL
        for b in sorted(ENCODED, key=lambda t: t.id)
        for layout in ("permuted", "rows", "shifted")
        if b.block <= 256
    ],
    *[
        Case(op="dup", args=(Arg((256, 3, 2), t, layout),), params={"to": "f32"}, compare="exact")
        for t in BLOCKS
        for layout in BLOCK_LAYOUTS
    ],
    *[
        Case(op="cont", args=(Arg(ne, t, layout, _values(t)),), compare="exact")
        for t in (*REAL, tp.I32, tp.I64)
        for ne in [(10, 10, 10, 1), (2, 1, 1, 3), (2, 1, 3, 5), (2, 3, 5, 7)]
        for layout in LAYOUTS
    ],
    *[
        Case(
            op="concat",
            args=(
                Arg(tuple(n + 2 * (i == dim) for i, n in enumerate(ne)), t, a, _values(t)),
                Arg(ne, t, b, _values(t)),
            ),
            params={"dim": dim},
            compare="exact",
        )
        for t in (tp.F32, tp.F16, tp.I32)
        for dim in range(4)
        for ne in [(11, 12, 3, 2), (1, 8, 2, 1)]
        for a, b in [("plain", "plain"), ("plain", "permuted"), ("transposed", "columns")]
    ],
    *[
        Case(
            op="repeat",
            args=(Arg((10, 5, 4, 3), t, layout, _values(t)),),
            params={"ne": _times((10, 5, 4, 3), repeats), "rank": 4},
            compare="exact",
        )
        for t in (tp.F32, tp.F16, tp.I32)
        for repeats in itertools.product((1, 2), (1, 3), (1, 2), (1, 2))
        for layout in ("plain", "permuted")
    ],
]

LOOKUPS = [
    *[
        get(
            Arg((256, rows, batch), t, layout, _values(t)),
            Arg((wanted, batch), tp.I32, ids, integers(0, rows)),
        )
        for t in (*REAL, tp.I32, *BLOCKS)
        for rows, wanted, batch in [(5, 4, 1), (80, 7, 3)]
        for layout, ids in [("plain", "plain"), ("rows", "columns")]
    ],
    *[
        put(
            Arg((256, 5, *table), t, layout),
            Arg((256, r, *table)),
            Arg((r, *ids), kind, data=distinct(5)),
        )
        for t in (*REAL, *sorted(ENCODED, key=lambda t: t.id))
        for kind in (tp.I32, tp.I64)
        for table, ids, r in [((1, 3), (), 1), ((1, 1), (), 4), ((3, 2), (3, 1), 3)]
        for layout in ("plain", "rows")
    ],
]

# --- products ----------------------------------------------------------------------------------


def _products() -> Iterable[Case]:
    for t, m in itertools.product((*REAL, *BLOCKS), (1, 2, 3, 4, 5, 7, 8, 9, 16)):
        yield product(Arg((256, 16), t), Arg((256, m)))
    for t, n in itertools.product(BLOCKS, (1, 7, 33)):
        yield product(Arg((512, n), t), Arg((512, 3)))
    batches: list[tuple[Ne, Ne]] = [
        ((1, 1), (1, 1)),
        ((3, 1), (1, 1)),
        ((3, 1), (2, 1)),
        ((2, 2), (1, 1)),
        ((2, 3), (2, 1)),
        ((2, 3), (1, 2)),
        ((2, 3), (2, 2)),
    ]
    for t, m, (batch, repeats) in itertools.product(
        (tp.F32, tp.F16, tp.Q8_0, tp.Q4_0, tp.Q4_K, MXFP4, IQ2_XXS), (1, 5), batches
    ):
        yield product(Arg((256, 6, *batch), t), Arg((256, m, *_times(batch, repeats))))
    for t, w, x in itertools.product(
        (tp.F32, tp.F16, tp.BF16), ("plain", "permuted", "columns"), LAYOUTS
    ):
        yield product(Arg((64, 7, 2, 3), t, w), Arg((64, 5, 2, 3), layout=x))
    for k, n, m in itertools.product((1, 3, 8, 31, 63, 257), (1, 5, 16), (1, 4, 9)):
        yield product(Arg((k, n)), Arg((k, m)))
        yield product(Arg((k, n), tp.F16), Arg((k, m)))


def _expert_products() -> Iterable[Case]:
    for t, experts, used, tokens, shared in itertools.product(
        (*REAL, *BLOCKS), (4, 8), (1, 2, 4), (1, 4), (False, True)
    ):
        yield product_of_experts(
            Arg((256, 16, experts), t),
            Arg((256, 1 if shared else used, tokens)),
            Arg((used, tokens), tp.I32, data=distinct(experts)),
        )


PRODUCTS = [*_products(), *_expert_products()]


def _attentions() -> Iterator[Case]:
    kinds = (tp.F32, tp.F16, tp.BF16, tp.Q8_0, tp.Q4_0)
    for t, size, (tokens, length), groups in itertools.product(
        kinds, (32, 64, 96, 128), [(1, 64), (3, 33), (7, 96)], (1, 4)
    ):
        q = Arg((size, tokens, 2 * groups))
        k = Arg((size, length, 2), t)
        for masked, sinks, bias, cap in [
            (False, False, 0.0, 0.0),
            (True, False, 0.0, 0.0),
            (True, False, 8.0, 0.0),
            (True, True, 0.0, 10.0),
            (True, True, 8.0, 0.0),
        ]:
            mask = Arg((length, tokens), tp.F16, data=MASK) if masked else None
            sink = Arg((2 * groups,)) if sinks else None
            yield attention(q, k, k, mask, sink, max_bias=bias, softcap=cap)
    for (size, width), t, layout in itertools.product(
        [(64, 32), (192, 128), (576, 512), (40, 40), (72, 72), (80, 80)],
        (tp.F32, tp.F16),
        ("plain", "permuted"),
    ):
        yield attention(
            Arg((size, 3, 4, 2), layout=layout),
            Arg((size, 40, 2, 2), t, layout),
            Arg((width, 40, 2, 2), t, layout),
            Arg((40, 3), tp.F16, data=MASK),
            scale=1 / math.sqrt(size),
        )


ATTENTIONS = list(_attentions())


def _without_repeats(cases: Iterable[Case]) -> list[Case]:
    return list({case.id: case for case in cases}.values())


CASES = _without_repeats(
    [
        *ARITHMETIC,
        *FUNCTIONS,
        *GATES,
        *STATISTICS,
        *ORDERS,
        *SHARES,
        *TURNS,
        *COPIES,
        *LOOKUPS,
        *PRODUCTS,
        *ATTENTIONS,
    ]
)
