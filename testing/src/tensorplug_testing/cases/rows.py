"""Cases of rows taken from and written to tables."""

from dataclasses import replace

import tensorplug as tp
from tensorplug_cpu.reference.blocks import ENCODED
from tensorplug_testing.cases.case import UNIT, Arg, Case, distinct, integers, partly
from tensorplug_testing.cases.elementwise import REAL
from tensorplug_testing.cases.matmul import BLOCKS

_INTEGERS = (tp.I8, tp.I16, tp.I32, tp.I64)
_SMALL = integers(-100, 100)


def get(table: Arg, ids: Arg) -> Case:
    """`get_rows` of `table`."""
    return Case(op="get_rows", args=(table, ids), compare="exact")


GET = [
    *[get(Arg((256, 6), t), Arg((4,), tp.I32, data=integers(0, 6))) for t in (*REAL, *BLOCKS)],
    *[
        get(Arg((256, 5, 2, 3), t), Arg((4, 2, 3), tp.I32, data=integers(0, 5)))
        for t in (tp.F32, tp.F16, tp.Q4_0, tp.Q6_K)
    ],
    *[
        get(Arg((7, 6), t, data=_SMALL), Arg((9,), tp.I32, data=integers(0, 6)))
        for t in (*_INTEGERS, tp.F64)
    ],
    *[
        get(Arg((64, 6, 2), t, layout), Arg((4, 2), tp.I32, ids, integers(0, 6)))
        for t in (tp.F32, tp.BF16, tp.Q8_0)
        for layout, ids in [("rows", "plain"), ("permuted", "columns"), ("columns", "rows")]
    ],
    get(Arg((1, 300)), Arg((1000,), tp.I32, data=integers(0, 300))),
    get(Arg((33, 1)), Arg((1,), tp.I32, data=integers(0, 1))),
    get(Arg((33, 4), layout="transposed"), Arg((3,), tp.I32, data=integers(0, 4))),
    get(Arg((33, 4)), Arg((0,), tp.I32, data=integers(0, 4))),
]


def put(table: Arg, rows: Arg, ids: Arg) -> Case:
    """`set_rows` into `table`."""
    compare = "encoded" if table.dtype.is_block else "near"
    return Case(op="set_rows", args=(table, rows, ids), compare=compare)


_TABLES = [*REAL, tp.F64, *sorted(ENCODED, key=lambda t: t.id)]

SET = [
    *[
        put(Arg((256, 9), t), Arg((256, 4)), Arg((4,), ids, data=distinct(9)))
        for t in _TABLES
        for ids in (tp.I32, tp.I64)
    ],
    *[
        put(Arg((64, 9, 4, 2), t), Arg((64, 3, 4, 2)), Arg(ids, tp.I64, data=distinct(9)))
        for t in (tp.F32, tp.F16, tp.Q8_0)
        for ids in [(3,), (3, 4), (3, 2), (3, 4, 2), (3, 1, 2)]
    ],
    *[
        put(
            Arg((64, 5, 2), t, table),
            Arg((64, 3, 2), layout=rows),
            Arg((3, 2), tp.I64, ids, distinct(5)),
        )
        for t in (tp.F32, tp.F16, tp.BF16, tp.Q4_0)
        for table, rows, ids in [
            ("rows", "plain", "plain"),
            ("permuted", "rows", "columns"),
            ("columns", "permuted", "plain"),
            ("shifted", "columns", "rows"),
        ]
    ],
    put(Arg((1, 300)), Arg((1, 70)), Arg((70,), tp.I64, data=distinct(300))),
    put(Arg((33, 9)), Arg((33, 4), layout="transposed"), Arg((4,), tp.I32, data=distinct(9))),
    put(Arg((33, 9)), Arg((33, 0)), Arg((0,), tp.I32, data=distinct(9))),
    *[
        put(
            Arg((7, 9), t, data=_SMALL),
            Arg((7, 4), data=_SMALL),
            Arg((4,), tp.I64, data=distinct(9)),
        )
        for t in _INTEGERS
    ],
]


_PARTLY = partly(distinct(9))

NO_ROW = [
    *[
        replace(get(Arg((64, 9, 2), t, data=values), ids), kind="no row")
        for t, values in [(tp.F32, UNIT), (tp.F16, UNIT), (tp.Q8_0, UNIT), (tp.I32, _SMALL)]
        for ids in [
            Arg((9, 2), tp.I32, layout, partly(integers(0, 9))) for layout in ("plain", "columns")
        ]
    ],
    replace(get(Arg((256, 9), tp.Q6_K), Arg((9,), tp.I32, data=_PARTLY)), kind="no row"),
    replace(get(Arg((33, 9), layout="transposed"), Arg((5,), tp.I32, data=_PARTLY)), kind="no row"),
    *[
        replace(put(Arg((64, 9, 2), t), Arg((64, 9, 2)), Arg(ne, i, data=_PARTLY)), kind="no row")
        for t in (tp.F32, tp.F16, tp.BF16, tp.Q8_0, tp.Q4_0)
        for ne, i in [((9,), tp.I32), ((9, 2), tp.I64)]
    ],
]


def back(grad: Arg, ids: Arg, rows: int) -> Case:
    """A case of `get_rows_back` into a table of `rows` rows."""
    return Case(op="get_rows_back", args=(grad, ids), params={"ne": (grad.ne[0], rows, 1, 1)})


BACK = [
    *[
        back(Arg((n, count), t, layout), Arg((count,), tp.I32, ids, integers(0, rows)), rows)
        for t in (tp.F32, tp.F16)
        for n, count, rows in [(1, 1, 1), (256, 4, 5), (7, 20, 3), (33, 5, 80)]
        for layout, ids in [("plain", "plain"), ("rows", "spaced"), ("transposed", "columns")]
    ],
    back(Arg((33, 0)), Arg((0,), tp.I32, data=integers(0, 4)), 4),
    replace(back(Arg((33, 7)), Arg((7,), tp.I32, data=partly(integers(0, 5))), 5), kind="no row"),
]

REFUSED = [
    put(Arg((256, 9), t), Arg((256, 4)), Arg((4,), tp.I64, data=distinct(9)))
    for t in BLOCKS
    if t not in ENCODED
]

CASES = [*GET, *SET, *NO_ROW, *BACK]
