"""Cases of gated linear units, with both halves in a row and with two sources."""

import tensorplug as tp
from tensorplug.ops.glu import GLU
from tensorplug_testing.cases.case import Arg, Case, uniform
from tensorplug_testing.cases.elementwise import REAL

_WIDE = uniform(-150, 150)
_OPS = (*GLU, "swiglu_oai")


def _cases(op: str) -> list[Case]:
    joined = [Arg((14, 5, 3, 2), t, data=_WIDE) for t in REAL]
    joined += [
        Arg((14, 5, 3, 2), layout="columns", data=uniform(-4, 4)),
        Arg((14, 5, 3, 2), layout="permuted", data=uniform(-4, 4)),
        Arg((2, 3), layout="rows", data=uniform(-4, 4)),
    ]
    apart = [
        (Arg((7, 5, 3, 2), t, data=_WIDE), Arg((7, 5, 3, 2), t, data=uniform(-4, 4))) for t in REAL
    ]
    apart += [
        (Arg((7, 5, 3, 2), layout="columns"), Arg((7, 5, 3, 2), layout="rows")),
        (Arg((7, 5)), Arg((7, 5), tp.F16)),
    ]
    # A gate of 150 would raise the error of a small activation above the limit of `each`.
    return [
        *[Case(op=op, args=(x,), each=x.data is not _WIDE) for x in joined],
        *[
            Case(op=op, args=(x,), params={"swapped": True}, each=x.data is not _WIDE)
            for x in joined[:4]
        ],
        *[Case(op=op, args=pair, each=True) for pair in apart],
    ]


_BELOW = Arg((7, 5, 3, 2), data=uniform(-40, -10))
"""Of the gate: activations that are tiny."""

CASES = [
    *[case for op in _OPS for case in _cases(op)],
    *[
        Case(op=op, args=(_BELOW, Arg(_BELOW.ne)), each=True, relative=True, always=True)
        for op in ("swiglu", "geglu_quick")
    ],
    Case(
        op="swiglu_oai",
        args=(Arg((14, 5), data=uniform(-10, 10)),),
        params={"alpha": 1.2, "limit": 3.0},
        each=True,
    ),
]
