"""Cases of sums, running sums and orders of rows."""

import math

import tensorplug as tp
from tensorplug_testing.cases.case import Arg, Case, among, integers, uniform
from tensorplug_testing.cases.elementwise import REAL

_LAYOUTS = ("plain", "permuted", "transposed", "rows", "columns", "shifted")
_ROWS = [(7, 5, 3, 2), (1, 4), (1000, 3), (33, 1, 2)]
_TIES = integers(0, 4)

SUM = [
    *[Case(op="sum", args=(Arg((7, 5, 3, 2), t, layout),)) for t in REAL for layout in _LAYOUTS],
    Case(op="sum", args=(Arg((1000, 7), tp.F16, data=uniform(0, 1)),)),
    Case(op="sum", args=(Arg((1000, 7), tp.BF16, data=uniform(0, 1)),)),
    Case(op="sum", args=(Arg((1,)),)),
    Case(op="sum", args=(Arg((4, 0)),)),
    Case(op="sum_rows", args=(Arg((0, 5)),)),
    Case(op="sum", args=(Arg((9,), data=among(1.0, math.inf)),)),
]

ALONG_ROWS = [
    Case(op=op, args=(arg,))
    for op in ("sum_rows", "mean", "cumsum")
    for arg in (
        *[Arg(ne) for ne in _ROWS],
        *[Arg((7, 5, 3, 2), layout=layout) for layout in _LAYOUTS[1:]],
        Arg((4096, 2), data=uniform(0, 1)),
        Arg((20, 3), data=among(1.0, 2.0, 3.0, math.inf)),
        Arg((9, 0)),
    )
]

OVERFLOWING = [
    Case(op=op, args=(Arg((n, 2), data=among(3e38, 3e38, 1.0, 0.0)),), kind="overflow")
    for n in (4, 40, 300, 5000)
    for op in ("cumsum", "sum_rows", "sum")
]

ARGMAX = [
    Case(op="argmax", args=(arg,), compare="exact")
    for arg in (
        Arg((7, 5)),
        Arg((1, 4)),
        Arg((1000, 3)),
        Arg((50,)),
        Arg((20, 9), data=_TIES),
        Arg((20, 9), data=among(-math.inf, 1.0, 2.0)),
        Arg((7, 5), layout="transposed"),
        Arg((7, 5), layout="rows"),
        Arg((7, 5), layout="columns"),
    )
]

_SORTED = (
    Arg((7, 5, 3, 2)),
    Arg((1, 4)),
    Arg((1000, 2)),
    Arg((20, 9), data=_TIES),
    Arg((16, 3), data=among(-math.inf, math.inf, 0.0, 1.0)),
    Arg((7, 5, 3, 2), layout="transposed"),
    Arg((7, 5, 3, 2), layout="permuted"),
    Arg((7, 5, 3, 2), layout="columns"),
)

ORDERS = [
    *[
        Case(op="argsort", args=(arg,), params={"descending": descending}, compare="order")
        for arg in _SORTED
        for descending in (False, True)
    ],
    *[
        Case(op="top_k", args=(arg,), params={"k": k}, compare="set")
        for arg in _SORTED
        for k in (1, 3, 7, 16)
        if k <= arg.ne[0]
    ],
    Case(op="top_k", args=(Arg((300, 4), data=_TIES),), params={"k": 300}, compare="set"),
]

COUNTS = [
    Case(
        op="count_equal",
        args=(Arg(ne, tp.I32, a, _TIES), Arg(ne, tp.I32, b, _TIES)),
        compare="exact",
    )
    for ne in [(7, 5, 3, 2), (1,), (4, 500), (4, 0)]
    for a, b in [("plain", "plain"), ("permuted", "rows"), ("columns", "spaced")]
    if ne[-1] or a == "plain"
]

CASES = [*COUNTS, *SUM, *OVERFLOWING, *ALONG_ROWS, *ARGMAX, *ORDERS]
