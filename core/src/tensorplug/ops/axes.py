"""Axes as people count them, NumPy's way, turned into dimensions of `ne`.

Axis 0 is the slowest dimension and axis -1 the fastest, which is dimension 0 of `ne`.
"""

import operator
from collections.abc import Sequence

from tensorplug.errors import ShapeError
from tensorplug.graph.tensor import MAX_RANK, Ne, Tensor

Axes = int | Sequence[int]


def axis_of(x: Tensor, axis: int, where: str) -> int:
    """`axis` of `x` from 0 on. Raises ShapeError for one that `x` does not have."""
    number = operator.index(axis)
    if not -x.rank <= number < x.rank:
        raise ShapeError(
            f"{where}: axis {number} of {x}, which has {x.rank} dimensions; axes go from "
            f"{-x.rank} to {x.rank - 1}"
        )
    return number % x.rank


def axes_of(x: Tensor, axes: Axes, where: str) -> tuple[int, ...]:
    """Several axes of `x` from 0 on, each once. Raises ShapeError."""
    given = (axes,) if isinstance(axes, int) else tuple(axes)
    found = tuple(axis_of(x, axis, where) for axis in given)
    if len(set(found)) < len(found):
        raise ShapeError(f"{where}: axes {given} of {x} name a dimension twice")
    return found


def dim_of(x: Tensor, axis: int, where: str) -> int:
    """The dimension of `ne` that is `axis` of `x`. Raises ShapeError."""
    return x.rank - 1 - axis_of(x, axis, where)


def moves_of(x: Tensor, axes: Sequence[int], where: str) -> Ne:
    """For each dimension of `ne` where it goes, when axis `i` of the result is `axes[i]` of `x`."""
    order = axes_of(x, axes, where)
    if len(order) != x.rank:
        raise ShapeError(f"{where}: axes {tuple(axes)} are not an order of the {x.rank} of {x}")
    moves = list(range(MAX_RANK))
    for to, axis in enumerate(order):
        moves[x.rank - 1 - axis] = x.rank - 1 - to
    a, b, c, d = moves
    return (a, b, c, d)
