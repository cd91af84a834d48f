"""Cases of the ops that read weights in panels, for all types: one row of `x`, few, many."""

import tensorplug as tp
from tensorplug_native.rules import PACKABLE
from tensorplug_testing.cases.case import Arg, Case, integers

TYPES = sorted(PACKABLE, key=lambda dtype: dtype.id)


def width(dtype: tp.DType) -> int:
    """Elements of a row: no power of two, and more than one block."""
    return dtype.block * (9 if dtype.block == 32 else 3)


PRODUCTS = [
    Case(op="mul_mat", args=(Arg((width(dtype), rows), dtype), Arg((width(dtype), *x))))
    for dtype in TYPES
    for rows, x in (
        (16, (1,)),
        (48, (1,)),
        (48, (2,)),
        (48, (3,)),
        (48, (7,)),
        (48, (13,)),
        (48, (18,)),
        (48, (20,)),
        (48, (23,)),
        (80, (40,)),
        (560, (34,)),
        (32, (1, 2, 2)),
    )
]
IDS = Arg((3,), tp.I32, data=integers(0, 48))
LOOKUPS = [
    Case(
        op="get_rows",
        args=(Arg((width(dtype), 48), dtype), Arg((3,), tp.I32, data=integers(0, 48))),
    )
    for dtype in TYPES
]
