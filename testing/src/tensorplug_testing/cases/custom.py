"""Cases of ops that call a function of the user."""

from typing import Any

import tensorplug as tp
from tensorplug.dtypes import IQ2_XXS
from tensorplug.ops.rules import ANY
from tensorplug_testing.cases.case import Arg, Case, Data, integers, uniform

Array = Any


def doubled(y: Array, a: Array) -> None:
    """Twice `a`."""
    y[...] = a + a


def first_of_two(y: Array, a: Array, b: Array) -> None:
    """`a` plus the first element of `b` if that is an integer."""
    y[...] = a + b.flat[0]


def chosen(y: Array, a: Array, b: Array, c: Array) -> None:
    """`b` where `a` is positive, else `c`."""
    y[...] = b
    y[a <= 0] = c[a <= 0]


def lengths(y: Array, *sources: Array) -> None:
    """The number of elements of each source."""
    y[...] = [source.size for source in sources]


def constant(y: Array) -> None:
    """Seven, without sources."""
    y[...] = 7


def all_added(y: Array, *sources: Array) -> None:
    """A sum to which each element of each source contributes, weighted by its position."""
    y[...] = sum(
        float((source * range(1, source.shape[-1] + 1)).sum()) * n
        for n, source in enumerate(sources, 1)
    )


def same(y: Array, a: Array, *_more: Array) -> None:
    """`a`, whatever its bits mean."""
    y[...] = a


def tripled(y: Array, a: Array, *, ith: int = 0, nth: int = 1) -> None:
    """Three times `a`; each call computes its own rows."""
    y[ith::nth] = a[ith::nth] * 3


_PLAIN = (tp.F32, tp.F16, tp.F64, tp.I8, tp.I16, tp.I32, tp.I64)
_BLOCKS = sorted((t for t in ANY if t.is_block), key=lambda t: t.id)
_LAYOUTS = ("plain", "permuted", "transposed", "rows", "columns", "shifted")


def _values(dtype: tp.DType) -> Data:
    return integers(-50, 50) if dtype.is_integer else uniform(-1, 1)


def _arg(dtype: tp.DType, layout: str = "plain") -> Arg:
    return Arg((7, 5, 3, 2), dtype, layout, _values(dtype))


CASES = [
    *[
        Case(op="map_custom1", args=(_arg(t, layout),), params={"function": doubled})
        for t in _PLAIN
        for layout in _LAYOUTS
    ],
    *[
        Case(op="map_custom2", args=(_arg(t), _arg(t)), params={"function": first_of_two})
        for t in _PLAIN
    ],
    *[
        Case(op="map_custom3", args=(_arg(t), _arg(t), _arg(t)), params={"function": chosen})
        for t in _PLAIN
    ],
    *[
        Case(
            op="custom",
            args=tuple(Arg((n,), kind) for n, kind in enumerate(_PLAIN[:count], 1)),
            params={"function": lengths, "ne": (count, 1, 1, 1), "rank": 1, "to": to.name},
        )
        for count, to in [(1, tp.F32), (3, tp.I32), (7, tp.I64)]
    ],
    *[
        Case(op=f"map_custom{n}", args=(_arg(tp.BF16),) * n, params={"function": same})
        for n in (1, 2, 3)
    ],
    *[
        Case(
            op="custom",
            args=(_arg(t),) * 10,
            params={"function": same, "ne": (7, 5, 3, 2), "rank": 4, "to": t.name},
        )
        for t in (*_PLAIN, tp.BF16)
    ],
    *[
        Case(
            op="map_custom1",
            args=(Arg((7, 5), t, layout, _values(t)),),
            params={"function": tripled, "n_tasks": n},
        )
        for t in (tp.F32, tp.I32)
        for layout in ("plain", "transposed")
        for n in (-1, 0, 1, 2, 5, 9)
    ],
    *[
        Case(
            op="map_custom2",
            args=(Arg((256, 3), t, layout), Arg((4,))),
            params={"function": same},
            compare="exact",
        )
        for t in (tp.Q8_0, tp.Q4_0, tp.Q4_K, IQ2_XXS)
        for layout in ("plain", "rows")
    ],
    *[
        Case(
            op=f"map_custom{n}",
            args=(Arg((256, 3), t),) * n,
            params={"function": same},
            compare="exact",
        )
        for n in (1, 2, 3)
        for t in _BLOCKS
    ],
    *[
        Case(
            op="custom",
            args=(Arg((256, 3, 2), t),) * 10,
            params={"function": same, "ne": (256, 3, 2, 1), "rank": 3, "to": t.name},
            compare="exact",
        )
        for t in _BLOCKS
    ],
    Case(
        op="map_custom2",
        args=(_arg(tp.F32, "transposed"), Arg((2, 3), layout="transposed")),
        params={"function": all_added},
    ),
    Case(
        op="map_custom3",
        args=(_arg(tp.F32, "rows"), Arg((5, 3), layout="rows"), Arg((4, 3), layout="transposed")),
        params={"function": all_added},
    ),
    Case(
        op="custom",
        args=tuple(Arg((3, n), layout="transposed") for n in range(2, 12)),
        params={"function": all_added, "ne": (4, 1, 1, 1), "rank": 1},
    ),
    Case(op="custom", params={"function": constant, "ne": (3, 2, 1, 1), "rank": 2}),
]
