"""Cases of state space models: lengths of kernels, channels, sequences, layouts."""

import itertools

from tensorplug.testing.cases.case import Arg, Case, uniform


def ssm_conv(x: Arg, kernel: Arg) -> Case:
    """`ssm_conv` of `x`."""
    return Case(op="ssm_conv", args=(x, kernel))


CONVOLUTIONS = [
    *[
        ssm_conv(Arg((d - 1 + tokens, channels, sequences)), Arg((d, channels)))
        for d, channels, (tokens, sequences) in itertools.product(
            (3, 4, 9), (256, 384, 33), [(1, 1), (7, 1), (1, 4), (7, 4)]
        )
    ],
    *[
        ssm_conv(Arg(x), Arg(kernel))
        for x, kernel in [
            ((1, 1), (1, 1)),
            ((5, 1), (1, 1)),
            ((8, 3), (1, 3)),
            ((131, 16), (4, 16)),
            ((8, 1, 3), (4, 1)),
            ((40, 7, 2), (33, 7)),
            ((3, 6), (4, 6)),
            ((5, 6, 0), (4, 6)),
            ((4,), (4,)),
        ]
    ],
    *[
        ssm_conv(Arg((9, 20, 3), layout=x), Arg((4, 20), layout=kernel))
        for x, kernel in [
            ("permuted", "plain"),
            ("transposed", "plain"),
            ("rows", "transposed"),
            ("columns", "columns"),
            ("shifted", "rows"),
        ]
    ],
    ssm_conv(Arg((9, 20), data=uniform(-1e18, 1e18)), Arg((4, 20), data=uniform(-1e18, 1e18))),
    ssm_conv(Arg((9, 20), data=uniform(0, 0)), Arg((4, 20))),
]

CASES = [*CONVOLUTIONS]
