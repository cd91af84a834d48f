"""Cases of copies: every type to itself, conversions, joins, tiles and windows."""

import itertools
import math

import tensorplug as tp
from tensorplug_cpu.reference.blocks import ENCODED
from tensorplug_testing.cases.case import Arg, Case, Data, among, integers, uniform
from tensorplug_testing.cases.elementwise import REAL
from tensorplug_testing.cases.matmul import BLOCKS

_INTEGERS = (tp.I8, tp.I16, tp.I32, tp.I64)
_PLAIN = (*REAL, tp.F64, *_INTEGERS)
_TARGETS = sorted(ENCODED, key=lambda t: t.id)
_LAYOUTS = ("plain", "permuted", "transposed", "rows", "columns", "shifted")
_BLOCK_LAYOUTS = ("plain", "permuted", "rows", "columns", "shifted")
_SMALL = integers(-100, 100)
_EDGES = among(0.0, -0.0, 1e-7, 6e-8, 65519.0, 65520.0, 1e30, 1e-40, math.inf, -math.inf, math.nan)


def _values(dtype: tp.DType) -> Data:
    return _SMALL if dtype.is_integer else uniform(-100, 100)


SAME = [
    *[
        Case(op=op, args=(Arg((7, 5, 3, 2), t, layout, _values(t)),), compare="exact")
        for op in ("dup", "cont")
        for t in _PLAIN
        for layout in _LAYOUTS
    ],
    *[
        Case(op=op, args=(Arg((256, 3, 2, 2), t, layout),), compare="exact")
        for op in ("dup", "cont")
        for t, layout in zip(BLOCKS, itertools.cycle(_BLOCK_LAYOUTS), strict=False)
    ],
    *[
        Case(
            op="cont",
            args=(Arg((8, 6, 5), t, layout),),
            params={"ne": (10, 24, 1, 1), "rank": 2},
            compare="exact",
        )
        for t in REAL
        for layout in ("plain", "transposed", "rows")
    ],
    Case(op="cont", args=(Arg((5, 0)),), compare="exact"),
]


def cast(x: Arg, to: tp.DType) -> Case:
    """`x` converted to another type."""
    compare = "encoded" if to.is_block and x.dtype is not to else "exact"
    return Case(op="dup", args=(x,), params={"to": to.name}, compare=compare)


CAST = [
    *[cast(Arg((7, 5, 3, 2), a, data=_values(a)), b) for a in _PLAIN for b in _PLAIN],
    *[cast(Arg((256, 3), t), to) for t in BLOCKS for to in (tp.F32, tp.F16)],
    *[cast(Arg((256, 3), t), to) for t in REAL for to in _TARGETS],
    *[cast(Arg((256, 3), t), to) for t, to in [(tp.Q8_0, tp.Q4_0), (tp.Q4_K, tp.Q8_0)]],
    *[
        cast(Arg((44,), t, data=_EDGES), to)
        for t in REAL
        for to in (tp.F32, tp.F16, tp.BF16, tp.F64)
    ],
    *[cast(Arg((64, 3), layout=layout), to) for layout in _LAYOUTS for to in (tp.F16, tp.Q8_0)],
    cast(Arg((64, 0)), tp.F16),
    cast(Arg((64, 2), data=uniform(0, 0)), tp.Q4_0),
]


def cpy(x: Arg, target: Arg) -> Case:
    """`x` written into `target`."""
    encoded = target.dtype.is_block and x.dtype is not target.dtype
    return Case(op="cpy", args=(x, target), compare="encoded" if encoded else "exact")


_TO_PLAIN = [
    (tp.F32, tp.F32),
    (tp.F32, tp.F16),
    (tp.F16, tp.F32),
    (tp.F32, tp.BF16),
    (tp.I32, tp.I32),
]

CPY = [
    *[
        cpy(Arg((8, 6, 3, 2), a, x, _values(a)), Arg((8, 6, 3, 2), b, y, _values(b)))
        for (a, b), x, y in itertools.product(_TO_PLAIN, _LAYOUTS, _LAYOUTS)
    ],
    *[cpy(Arg((8, 6), a, data=_values(a)), Arg((8, 6), b)) for a in _PLAIN for b in _PLAIN],
    *[
        cpy(Arg((64, 6, 2), t, x), Arg((64, 6, 2), t, y))
        for t in (tp.Q4_0, tp.Q8_0)
        for x, y in [("plain", "rows"), ("rows", "columns"), ("permuted", "shifted")]
    ],
    *[cpy(Arg((256, 3), t), Arg((256, 3), t, "rows")) for t in BLOCKS],
    *[
        cpy(Arg((64, 6, 2), layout=x), Arg((64, 6, 2), t, y))
        for t in _TARGETS
        if t.block <= 64
        for x, y in [("plain", "rows"), ("transposed", "columns"), ("permuted", "plain")]
    ],
    *[cpy(Arg((256, 3), t), Arg((256, 3), layout="rows")) for t in BLOCKS],
    cpy(Arg((8, 6)), Arg((12, 4))),
    cpy(Arg((8, 6), layout="transposed"), Arg((3, 16), tp.F16, "rows")),
    cpy(Arg((64, 6), tp.Q8_0), Arg((128, 3), layout="columns")),
    cpy(Arg((64, 6), layout="rows"), Arg((128, 3), tp.Q8_0)),
    cpy(Arg((4, 0)), Arg((4, 0))),
]


def _sizes(dim: int, length: int) -> tuple[int, ...]:
    return tuple(length if i == dim else n for i, n in enumerate((6, 5, 3, 2)))


CONCAT = [
    *[
        Case(
            op="concat",
            args=(Arg(_sizes(dim, 4), t, a, _values(t)), Arg(_sizes(dim, 3), t, b, _values(t))),
            params={"dim": dim},
            compare="exact",
        )
        for dim in range(4)
        for t, a, b in [
            *[(t, "plain", "plain") for t in _PLAIN],
            (tp.F32, "permuted", "rows"),
            (tp.F16, "columns", "transposed"),
        ]
    ],
    Case(op="concat", args=(Arg((4, 0)), Arg((4, 3))), params={"dim": 1}, compare="exact"),
    Case(op="concat", args=(Arg((4,)), Arg((4,))), params={"dim": 2}, compare="exact"),
]

REPEAT = [
    Case(
        op="repeat",
        args=(Arg(ne, t, layout, _values(t)),),
        params={"ne": wanted, "rank": 4},
        compare="exact",
    )
    for ne, wanted, layout in [
        ((7, 5, 3, 2), (7, 5, 3, 2), "plain"),
        ((7, 5, 3, 2), (14, 5, 9, 2), "plain"),
        ((1, 5, 1, 1), (4, 10, 2, 3), "plain"),
        ((7, 5, 3, 2), (7, 15, 3, 4), "transposed"),
        ((7, 5, 3, 2), (21, 5, 3, 2), "rows"),
    ]
    for t in _PLAIN
]

_WINDOWS = [
    ((8, 5, 3, 2), (4, 3, 2, 1), {"nb1": 32, "nb2": 160, "nb3": 480, "offset": 44}),
    ((8, 5, 3, 2), (8, 5, 3, 2), {"nb1": 32, "nb2": 160, "nb3": 480, "offset": 0}),
    ((40,), (6,), {"nb1": 160, "nb2": 160, "nb3": 160, "offset": 136}),
    ((40,), (3, 4), {"nb1": 40, "nb2": 160, "nb3": 160, "offset": 4}),
    ((8, 5), (2, 5), {"nb1": 32, "nb2": 160, "nb3": 160, "offset": 16}),
]

WINDOWS = [
    Case(
        op=op,
        args=(Arg(a), Arg(part, layout=layout)),
        params=window,
        in_place=in_place,
    )
    for op in ("acc", "set")
    for a, part, window in _WINDOWS
    for layout, in_place in [("plain", False), ("columns", False), ("rows", True)]
]

UNENCODED = [t for t in BLOCKS if t not in ENCODED]
REFUSED = [
    *[cast(Arg((256, 3)), t) for t in UNENCODED],
    *[cpy(Arg((256, 3), tp.F16), Arg((256, 3), t)) for t in UNENCODED],
]

CASES = [*SAME, *CAST, *CPY, *CONCAT, *REPEAT, *WINDOWS]
