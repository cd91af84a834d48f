"""Cases of windows of images and relative positions."""

from tensorplug_testing.cases.case import Arg, Case
from tensorplug_testing.cases.elementwise import REAL

_LAYOUTS = ("permuted", "transposed", "rows", "columns", "shifted", "spaced")


def part(ne: tuple[int, ...], w: int, layout: str = "plain") -> Case:
    """An image cut into windows."""
    return Case(op="win_part", args=(Arg(ne, layout=layout),), params={"w": w}, compare="exact")


def unpart(channels: int, wide: int, high: int, w: int, layout: str = "plain") -> Case:
    """An image put together from windows."""
    count = -(-wide // w) * -(-high // w)
    return Case(
        op="win_unpart",
        args=(Arg((channels, w, w, count), layout=layout),),
        params={"w0": wide, "h0": high, "w": w},
        compare="exact",
    )


_IMAGES = [(1, 1, 1, 1), (3, 4, 4, 2), (5, 7, 4, 3), (2, 3, 9, 4), (8, 14, 14, 14), (1, 2, 3, 7)]


_PLAIN = ("plain", "plain", "plain")


def added(n: int, wide: int, high: int, heads: int, layouts: tuple[str, str, str] = _PLAIN) -> Case:
    """Scores of windows of `n` * `n` positions with relative positions added."""
    x, w, h = layouts
    shape = (n, wide, high, heads)
    args = (
        Arg((n * n, wide * high, heads), layout=x),
        Arg(shape, layout=w),
        Arg(shape, layout=h),
    )
    return Case(op="add_rel_pos", args=args, each=True)


CASES = [
    *[part((c, wide, high), w) for c, wide, high, w in _IMAGES],
    *[part((5, 7, 4), 3, layout) for layout in _LAYOUTS],
    *[unpart(*image) for image in _IMAGES],
    *[unpart(5, 7, 4, 3, layout) for layout in _LAYOUTS],
    *[
        Case(
            op="get_rel_pos",
            args=(Arg((c, 2 * n - 1), dtype, layout),),
            params={"qh": n, "kh": n},
            compare="exact",
        )
        for dtype in REAL
        for c, n, layout in [
            (1, 1, "plain"),
            (7, 5, "plain"),
            (64, 14, "plain"),
            *[(7, 5, layout) for layout in _LAYOUTS],
        ]
    ],
    *[
        added(n, wide, high, heads, _PLAIN)
        for n, wide, high, heads in [(1, 1, 1, 1), (3, 3, 3, 2), (4, 2, 5, 3), (7, 7, 7, 1)]
    ],
    *[
        added(3, 2, 4, 3, layouts)
        for layouts in [
            ("permuted", "transposed", "rows"),
            ("rows", "permuted", "transposed"),
            ("spaced", "columns", "spaced"),
        ]
    ],
    Case(
        op="add_rel_pos", args=(Arg((9, 4, 2)), Arg((3, 2, 2, 2)), Arg((3, 2, 2, 2))), in_place=True
    ),
]
