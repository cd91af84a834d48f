"""Cases of normalisation."""

from tensorplug_testing.cases.case import Arg, Case, uniform

_ROWS = ("norm", "rms_norm", "l2_norm")
_EPS = {"norm": (1e-5, 0.1), "rms_norm": (1e-6, 0.1), "l2_norm": (1e-12, 10.0)}

_ARGS = (
    Arg((7, 5, 3, 2)),
    Arg((64, 5, 4, 3)),
    Arg((1000, 3)),
    Arg((1, 4), data=uniform(1, 2)),
    Arg((33,)),
    Arg((7, 5, 3, 2), layout="permuted"),
    Arg((7, 5, 3, 2), layout="rows"),
    Arg((7, 5, 3, 2), layout="columns"),
    Arg((7, 5, 3, 2), layout="transposed"),
    Arg((7, 5, 3, 2), layout="shifted"),
    Arg((64, 5), data=uniform(1e6, 2e6)),
    Arg((64, 5), data=uniform(-1e-4, 1e-4)),
    Arg((9, 3), data=uniform(0, 0)),
    Arg((64, 0)),
)

_IMAGES = [
    (Arg((4, 5, 6, 2)), 1),
    (Arg((4, 5, 6, 2)), 2),
    (Arg((4, 5, 6, 2)), 6),
    (Arg((4, 5, 7)), 3),
    (Arg((4, 5, 4, 2)), 3),
    (Arg((1, 1, 320)), 32),
    (Arg((4, 5, 6, 2), layout="permuted"), 3),
    (Arg((4, 5, 6, 2), layout="columns"), 3),
    (Arg((4, 5, 6, 2), layout="transposed"), 3),
]

CASES = [
    *[
        Case(op=op, args=(arg,), params={"eps": eps})
        for op in _ROWS
        for eps in _EPS[op]
        for arg in _ARGS
    ],
    *[Case(op=op, args=(Arg((7, 5, 3, 2), layout="shifted"),), in_place=True) for op in _ROWS],
    *[
        Case(op="group_norm", args=(arg,), params={"groups": groups, "eps": eps})
        for arg, groups in _IMAGES
        for eps in (1e-6, 0.1)
    ],
]
