"""Cases of functions of one element, from -150 to 150 and at the edges of their range."""

import math

import tensorplug as tp
from tensorplug.ops.unary import UNARY
from tensorplug_testing.cases.case import Arg, Case, Data, among, uniform
from tensorplug_testing.cases.elementwise import REAL

_NE = (7, 5, 3, 2)
_WIDE = uniform(-150, 150)
_POSITIVE = uniform(0, 150)
_HALVES = among(0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.49999997, -0.49999997, 8388609.0, 0.0, -0.0)
_RANGES: dict[str, Data] = {"sqrt": _POSITIVE, "log": _POSITIVE}
_HALF_RANGES: dict[str, Data] = {"exp": uniform(-10, 10), "expm1": uniform(-10, 10)}
"""Ranges for which results fit into f16."""

_FINITE = (0.0, -0.0, 1e-30, -1e-30, 1.0, -1.0, 20.0, 20.1, -20.0, 1e30, -1e30)
_NO_LIMIT_BELOW = {"gelu", "gelu_quick", "gelu_erf", "silu", "hardswish"}
"""Ops whose formulas give infinity times zero at minus infinity."""
_NO_NAN = {"step", "sgn", "relu", "elu", "softplus", "hardswish", "hardsigmoid"}
"""Ops whose formulas compare, so that their result for NaN is undefined."""
_BELOW = uniform(-40, -10)
_FADING = ("exp", "sigmoid", "silu", "gelu_quick")
"""Ops whose results below are tiny, and right to the last digits by their usual formulas."""
_SMALL = uniform(-1e-3, 1e-3)
_STEADY = (
    "silu",
    "gelu",
    "gelu_quick",
    "gelu_erf",
    "hardswish",
    "sqr",
    "sin",
    "tanh",
    "expm1",
    "elu",
)
"""Ops whose results near 0 are in proportion to a power of x."""
_PERIODIC = {"sin", "cos"}


def _edges(op: str) -> Data:
    if op in _PERIODIC:
        return among(0.0, -0.0, 1e-30, 1.0, -1.0, 1000.0, -1000.0, math.nan)
    ends = [math.inf, *([] if op in _NO_LIMIT_BELOW else [-math.inf])]
    return among(*_FINITE, *ends, *([] if op in _NO_NAN else [math.nan]))


def _cases(op: str) -> list[Case]:
    wide = _RANGES.get(op, _WIDE)
    args = []
    for dtype, layout in zip(REAL, ("transposed", "columns", "permuted"), strict=True):
        data = wide if dtype is tp.F32 else _HALF_RANGES.get(op, wide)
        args += [Arg(_NE, dtype, "plain", data), Arg(_NE, dtype, layout, data)]
    args += [Arg((60,), dtype, data=_edges(op)) for dtype in (tp.F32, tp.BF16)]
    args += [Arg((50, 3), layout="rows", data=_near_zero(op))]
    over = [Arg(_NE, layout="shifted", data=wide), Arg(_NE, tp.BF16, data=_near_zero(op))]
    return [
        *[Case(op=op, args=(arg,), each=True) for arg in args],
        *[Case(op=op, args=(arg,), each=True, in_place=True) for arg in over],
    ]


def _near_zero(op: str) -> Data:
    return uniform(0.001, 4) if op in _RANGES else uniform(-4, 4)


_XIELU = {"alpha_n": 0.8, "alpha_p": 0.7, "beta": 0.5, "eps": -1e-6}

CASES = [
    *[case for op in UNARY for case in _cases(op)],
    *[Case(op="round", args=(Arg((44,), t, data=_HALVES),), compare="exact") for t in REAL],
    *[
        Case(op="xielu", args=(Arg(_NE, t, layout, data),), params=_XIELU, each=True)
        for t in REAL
        for layout, data in [("plain", _WIDE), ("transposed", uniform(-4, 4))]
    ],
    Case(op="xielu", args=(Arg(_NE, layout="shifted"),), params=_XIELU, each=True, in_place=True),
    *[
        Case(op=op, args=(Arg(_NE, dtype, data=data),), each=True, relative=True, always=True)
        for ops, data in ((_FADING, _BELOW), (_STEADY, _SMALL))
        for op in ops
        for dtype in (tp.F32, tp.BF16)
    ],
    Case(op="exp", args=(Arg((3, 0)),)),
]
