"""Cases of repetitions summed back."""

import itertools

import tensorplug as tp
from tensorplug_testing.cases.case import Arg, Case

_LAYOUTS = ("plain", "permuted", "transposed", "rows", "columns", "spaced")


def back(x: tuple[int, ...], ne: tuple[int, ...], dtype: tp.DType, layout: str) -> Case:
    """`x` summed back to sizes `ne`."""
    params = {"ne": ne, "rank": 4}
    return Case(op="repeat_back", args=(Arg(x, dtype, layout),), params=params)


CASES = [
    *[
        back((8 * a, 6 * b, 4 * c, 2 * d), (8, 6, 4, 2), dtype, "plain")
        for dtype in (tp.F32, tp.F16)
        for a, b, c, d in itertools.product((1, 2), repeat=4)
    ],
    *[back((14, 5, 6, 2), (7, 5, 2, 1), tp.F32, layout) for layout in _LAYOUTS],
    back((9, 4, 1, 1), (1, 1, 1, 1), tp.F32, "plain"),
    back((4, 0, 1, 1), (4, 0, 1, 1), tp.F32, "plain"),
]
