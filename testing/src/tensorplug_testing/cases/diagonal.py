"""Cases of diagonals, triangles and triangular systems."""

import itertools
import math

import numpy as np

from tensorplug.ops.diagonal import TRIANGLES
from tensorplug_testing.cases.case import Arg, Array, Case, Data, among, uniform
from tensorplug_testing.cases.elementwise import REAL

_LAYOUTS = ("plain", "permuted", "transposed", "rows", "columns", "shifted", "spaced")


def _well_posed(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A triangular matrix with a dominant diagonal; above it 1e9, which the op must not read."""
    n = shape[-1]
    matrix = rng.uniform(-1, 1, shape) / n
    matrix[..., np.arange(n), np.arange(n)] = rng.uniform(1, 2, shape[:-1])
    matrix[..., np.triu(np.ones((n, n), bool), 1)] = 1e9
    return matrix


SYSTEM = Data("system", _well_posed)


def solve(n: int, k: int, batch: tuple[int, ...], a: str = "plain", b: str = "plain") -> Case:
    """A system of `n` equations with `k` right sides."""
    # Leafs of other layouts are not square, so their values cannot have a dominant diagonal.
    data = SYSTEM if a == "plain" else uniform(0.5, 1)
    args = (Arg((n, n, *batch), layout=a, data=data), Arg((k, n, *batch), layout=b))
    return Case(op="solve_tri", args=args)


def masks(op: str) -> list[Case]:
    """Cases of an op that writes one number over a triangle."""
    variants = [
        ("plain", 0, False),
        ("plain", 2, False),
        ("rows", 9, False),
        ("transposed", 1, False),
        ("shifted", 0, True),
    ]
    return [
        Case(
            op=op,
            args=(Arg((7, 5, 3, 2), dtype, layout),),
            params={"n_past": past},
            in_place=in_place,
        )
        for dtype, (layout, past, in_place) in itertools.product(REAL, variants)
    ]


DIAG = [
    *[Case(op="diag", args=(Arg((n, 1, *rest)),)) for n in (1, 9, 64) for rest in [(), (3, 2)]],
    *[Case(op="diag", args=(Arg((7, 1, 3, 2), layout=layout),)) for layout in _LAYOUTS],
    Case(op="diag", args=(Arg((9, 1), data=among(1.0, math.inf, math.nan)),)),
]

MASKS = [
    *masks("diag_mask_zero"),
    *[
        Case(op="tri", args=(Arg((n, n, 3, 2), dtype, layout),), params={"kind": kind})
        for kind in TRIANGLES
        for dtype in REAL
        for n, layout in [(6, "plain"), (1, "plain"), (6, "permuted"), (6, "rows")]
    ],
    Case(
        op="tri",
        args=(Arg((6, 6), data=among(1.0, math.inf, math.nan)),),
        params={"kind": "lower"},
    ),
]

SYSTEMS = [
    *[solve(n, k, batch) for n in (1, 2, 7, 11, 32) for k in (1, 5, 10) for batch in [(), (2, 4)]],
    *[solve(6, 5, (3, 2), a, b) for a, b in zip(_LAYOUTS, _LAYOUTS[::-1], strict=True)],
    solve(64, 3, ()),
]

CASES = [*DIAG, *MASKS, *SYSTEMS]
