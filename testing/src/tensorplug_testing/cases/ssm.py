"""Cases of state space models: lengths of kernels, channels, sequences, layouts."""

import itertools
from dataclasses import replace

import tensorplug as tp
from tensorplug_testing.cases.case import Arg, Case, distinct, integers, partly, uniform


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

DECAY = uniform(-1, 0)
Layouts = dict[str, str]
_PLAIN: Layouts = {}


def laid(sources: dict[str, Arg], layouts: Layouts) -> tuple[Arg, ...]:
    """The sources in order, in the layouts that `layouts` names."""
    return tuple(replace(a, layout=layouts.get(n, a.layout)) for n, a in sources.items())


def ssm_scan(
    sizes: tuple[int, ...] = (16, 8, 4, 2, 5, 2),
    *,
    decays: int = 1,
    layouts: Layouts = _PLAIN,
    params: dict[str, int] | None = None,
    **given: Arg,
) -> Case:
    """`ssm_scan` with `decays` decays for each head; `given` replaces sources.

    `sizes` are n, dim, heads, groups, tokens, sequences.
    """
    n, dim, heads, groups, tokens, sequences = sizes
    sources = {
        "s": Arg((n, dim, heads, sequences)),
        "x": Arg((dim, heads, tokens, sequences)),
        "dt": Arg((heads, tokens, sequences)),
        "a": Arg((decays, heads), data=DECAY),
        "b": Arg((n, groups, tokens, sequences)),
        "c": Arg((n, groups, tokens, sequences)),
        "ids": Arg((sequences,), tp.I32, data=distinct(sequences)),
    }
    return Case(op="ssm_scan", args=laid(sources | given, layouts), params=params or {})


def _steps(low: float, high: float) -> Arg:
    """Time steps (dt) for the default sizes, between `low` and `high`."""
    return Arg((4, 5, 2), data=uniform(low, high))


SCANS = [
    # Mamba-1: a decay for each element of the state of a channel
    *[
        ssm_scan((n, 1, channels, 1, tokens, sequences), decays=n)
        for n, channels, tokens, sequences in [
            (16, 256, 8, 3),
            (16, 33, 1, 1),
            (4, 7, 5, 2),
            (1, 3, 4, 1),
        ]
    ],
    # Mamba-2: a decay for each head
    *[
        ssm_scan(sizes)
        for sizes in [
            (128, 64, 4, 2, 8, 2),
            (128, 32, 4, 1, 3, 1),
            (16, 8, 6, 3, 9, 4),
            (16, 8, 6, 6, 2, 2),
            (5, 3, 4, 2, 7, 3),
            (33, 1, 2, 1, 64, 1),
            (1, 1, 1, 1, 1, 1),
            (16, 8, 4, 1, 0, 2),
        ]
    ],
    *[
        ssm_scan((16, 8, 4, 2, tokens, 2), params={"K": k})
        for tokens, k in [(5, 2), (5, 5), (5, 8), (1, 3), (0, 2)]
    ],
    ssm_scan((8, 1, 20, 1, 5, 2), decays=8, params={"K": 3}),
    ssm_scan((8, 3, 20, 4, 5, 2), decays=8),
    ssm_scan(s=Arg((16, 8, 4, 7)), ids=Arg((2,), tp.I32, data=distinct(7))),
    ssm_scan(s=Arg((16, 8, 4, 7)), ids=Arg((2,), tp.I32, "spaced", distinct(7))),
    ssm_scan((16, 8, 4, 2, 5, 3), s=Arg((16, 8, 4, 1)), ids=Arg((3,), tp.I32, data=uniform(0, 0))),
    *[
        ssm_scan(ids=Arg((2,), tp.I32, layout, integers(0, 2)))
        for layout in ("columns", "shifted", "transposed")
    ],
    *[
        replace(ssm_scan((16, 8, 4, 2, tokens, 3), ids=ids), kind="no row")
        for tokens in (5, 0)
        for ids in [Arg((3,), tp.I32, data=partly(distinct(3)))]
    ],
    ssm_scan(dt=_steps(15, 30)),
    ssm_scan(dt=_steps(-120, -60)),
    ssm_scan(dt=_steps(-300, 300), params={"K": 2}),
    *[
        ssm_scan((16, 8, 4, 2, 5, 3), layouts=layouts)
        for layouts in [
            {"s": "rows", "x": "rows", "b": "columns", "c": "rows"},
            {"s": "permuted", "x": "permuted", "dt": "permuted", "b": "permuted", "c": "permuted"},
            {"x": "transposed", "dt": "transposed", "a": "rows", "b": "transposed"},
            {"s": "shifted", "x": "columns", "dt": "columns", "a": "columns"},
        ]
    ],
]

CASES = [*CONVOLUTIONS, *SCANS]
