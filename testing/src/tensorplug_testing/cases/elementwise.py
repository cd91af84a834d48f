"""Cases of element-by-element arithmetic."""

import math
from collections.abc import Mapping

import tensorplug as tp
from tensorplug.ops.rules import BLOCKS
from tensorplug_cpu.reference.blocks import ENCODED
from tensorplug_testing.cases.case import Arg, Case, among, integers, partly, uniform

REAL = (tp.F32, tp.F16, tp.BF16)
BINARY = ("add", "sub", "mul", "div")
EDGES = among(0.0, -0.0, 1.0, -1.0, 1e-30, -1e30, 3e38, math.inf, -math.inf, math.nan)

_FULL = (7, 5, 3, 2)
_REPEATED = [
    (1, 5, 3, 2),
    (7, 1, 1, 1),
    (1, 1, 1, 1),
    (7, 5, 1, 2),
    (7, 1, 3, 1),
    (7,),
]


def binary(op: str, a: Arg, b: Arg, *, in_place: bool = False) -> Case:
    """`op` of `a` and `b`, compared element by element."""
    return Case(op=op, args=(a, b), each=True, in_place=in_place)


def _types(op: str) -> list[Case]:
    return [binary(op, Arg(_FULL, a), Arg(_FULL, b)) for a in REAL for b in REAL]


def _repeats(op: str) -> list[Case]:
    cases = [binary(op, Arg(_FULL), Arg(ne)) for ne in _REPEATED]
    cases.append(binary(op, Arg((14, 10, 6, 4)), Arg((7, 5, 3, 2))))
    cases.append(binary(op, Arg((1000, 3)), Arg((1000,))))
    cases.append(binary(op, Arg((16, 4), tp.F16), Arg((4, 2))))
    return cases


def _layouts(op: str) -> list[Case]:
    return [
        binary(op, Arg(_FULL, layout="transposed"), Arg(_FULL)),
        binary(op, Arg(_FULL), Arg(_FULL, layout="transposed")),
        binary(op, Arg(_FULL, layout="permuted"), Arg((7, 5, 3, 1), layout="rows")),
        binary(op, Arg(_FULL, tp.F16, layout="columns"), Arg((7, 1, 3, 2), layout="columns")),
        binary(op, Arg(_FULL, tp.BF16, layout="shifted"), Arg((7,), layout="shifted")),
        binary(op, Arg(_FULL), Arg((7,)), in_place=True),
        binary(op, Arg(_FULL, layout="rows"), Arg(_FULL), in_place=True),
        binary(op, Arg(_FULL, layout="transposed"), Arg(_FULL), in_place=True),
        binary(op, Arg(_FULL, tp.F16), Arg((7,)), in_place=True),
        binary(op, Arg(_FULL, tp.BF16), Arg(_FULL, tp.BF16), in_place=True),
        binary(op, Arg((40,), data=EDGES), Arg((40,), data=EDGES)),
        binary(op, Arg((40,), tp.F16, data=EDGES), Arg((40,), tp.BF16, data=EDGES)),
        binary(op, Arg(_FULL, layout="spaced"), Arg((7, 5, 1, 2), layout="spaced")),
        binary(op, Arg((4, 0)), Arg((4, 1))),
    ]


ADD1 = [
    Case(op="add1", args=(Arg(_FULL, a, layout), Arg((1,), b)), each=True, in_place=in_place)
    for a in REAL
    for b in REAL
    for layout, in_place in [("plain", False), ("permuted", False), ("shifted", True)]
]

ENCODABLE = sorted((t for t in BLOCKS if t in ENCODED), key=lambda t: t.id)
SUMS = [
    *[
        Case(op=op, args=(Arg((256, 3), t, layout), other), compare="encoded", in_place=in_place)
        for t in ENCODABLE
        for op, other, layout, in_place in [
            ("add", Arg((256, 3), data=uniform(-0.1, 0.1)), "plain", False),
            ("add", Arg((256, 1), tp.F16, data=uniform(-0.1, 0.1)), "shifted", True),
            ("add", Arg((256, 3)), "rows", False),
            ("add1", Arg((1,), data=uniform(-0.1, 0.1)), "columns", False),
        ]
    ],
    *[
        Case(op="add", args=(Arg((256, 3), t), Arg((256, 3), b)), params={"to": to.name})
        for t in (*REAL, *ENCODABLE)
        for b, to in [(tp.F32, tp.F32), (tp.F16, tp.F16), (tp.F32, tp.BF16)]
    ],
]
REFUSED = [
    Case(op=op, args=(Arg((256, 3), t), other), compare="encoded")
    for t in sorted(BLOCKS - ENCODED, key=lambda t: t.id)
    for op, other in [("add", Arg((256, 3))), ("add1", Arg((1,)))]
]

EXPERT = integers(0, 6)
ADD_ID = [
    Case(
        op="add_id",
        args=(
            Arg((7, used, tokens)),
            Arg((7, 6), layout=bias),
            Arg((used, tokens), tp.I32, ids, EXPERT),
        ),
        each=True,
        in_place=in_place,
    )
    for used, tokens, bias, ids, in_place in [
        (4, 5, "plain", "plain", False),
        (1, 1, "plain", "plain", False),
        (4, 5, "rows", "columns", False),
        (2, 9, "plain", "plain", True),
        (4, 5, "spaced", "spaced", False),
    ]
] + [
    Case(
        op="add_id",
        args=(Arg((7, 4, 5), layout=a), Arg((7, 6)), Arg((4, 5), tp.I32, data=EXPERT)),
        each=True,
    )
    for a in ("permuted", "rows", "columns", "transposed")
]
ADD_NO_ROW = [
    Case(
        op="add_id",
        args=(Arg((7, 4, 5)), Arg((7, 6)), Arg((4, 5), tp.I32, data=partly(EXPERT))),
        each=True,
        in_place=in_place,
        kind="no row",
    )
    for in_place in (False, True)
]


def constant(op: str, x: Arg, params: Mapping[str, float], *, in_place: bool = False) -> Case:
    """`op` of `x` with numbers, compared element by element."""
    return Case(op=op, args=(x,), params=params, each=True, in_place=in_place)


def _with_constants(op: str, **params: float) -> list[Case]:
    x = uniform(-10, 10)
    args = [Arg(_FULL, t, layout, x) for t in REAL for layout in ("plain", "transposed")]
    args += [Arg(_FULL, layout="rows", data=x), Arg((3, 0)), Arg((1000,), data=x)]
    cases = [constant(op, arg, params) for arg in args]
    moved = Arg(_FULL, layout="shifted", data=x)
    half = Arg(_FULL, tp.F16, data=x)
    return [*cases, *[constant(op, arg, params, in_place=True) for arg in (moved, half)]]


CONSTANTS = [
    *_with_constants("scale", scale=0.37),
    *_with_constants("scale", scale=-2.0, bias=0.5),
    *_with_constants("clamp", min=-0.5, max=2.5),
    *_with_constants("leaky_relu", slope=0.1),
    *_with_constants("fill", value=-1.25),
    Case(op="fill", args=(Arg((5, 3)),), params={"value": math.inf}),
    Case(
        op="clamp",
        args=(Arg((20,), data=among(-math.inf, math.inf, 0.0, 5.0)),),
        params={"min": -1.0, "max": math.inf},
    ),
]

ARANGE = [
    Case(op="arange", params={"start": start, "stop": stop, "step": step}, each=True)
    for start, stop, step in [
        (0.0, 10.0, 1.0),
        (0.0, 1.0, 0.3),
        (5.0, -5.0, -2.0),
        (-1.5, 1000.0, 0.25),
        (3.0, 4.0, 7.0),
    ]
]

CASES = [
    *[case for op in BINARY for case in (*_types(op), *_repeats(op), *_layouts(op))],
    *ADD1,
    *SUMS,
    *ADD_ID,
    *ADD_NO_ROW,
    *CONSTANTS,
    *ARANGE,
]
