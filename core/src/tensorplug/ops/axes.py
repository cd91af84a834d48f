"""Conversion of axes in NumPy order to dimensions of `ne`.

Axis 0 is the slowest dimension. Axis -1 is the fastest dimension, which is dimension 0 of `ne`.
"""

import operator
from collections.abc import Sequence

from tensorplug.errors import ShapeError
from tensorplug.graph.tensor import MAX_RANK, Ne, Tensor

Axes = int | Sequence[int]


def axis_of(x: Tensor, axis: int, where: str) -> int:
    """`axis` of `x` as a number from 0 on. Raises ShapeError if `x` does not have the axis."""
    number = operator.index(axis)
    if not -x.rank <= number < x.rank:
        raise ShapeError(
            f"{where}: axis {number} of {x}, which has {x.rank} dimensions; axes go from "
            f"{-x.rank} to {x.rank - 1}"
        )
    return number % x.rank


def axes_of(x: Tensor, axes: Axes, where: str) -> tuple[int, ...]:
    """Axes of `x` as numbers from 0 on. Raises ShapeError for an axis given twice or missing."""
    given = (axes,) if isinstance(axes, int) else tuple(axes)
    found = tuple(axis_of(x, axis, where) for axis in given)
    if len(set(found)) < len(found):
        raise ShapeError(f"{where}: axes {given} of {x} name a dimension twice")
    return found


def dim_of(x: Tensor, axis: int, where: str) -> int:
    """The dimension of `ne` that is `axis` of `x`. Raises ShapeError."""
    return x.rank - 1 - axis_of(x, axis, where)


def moves_of(x: Tensor, axes: Sequence[int], where: str) -> Ne:
    """The dimension of the result for each dimension of `x`, in `ne` order.

    Axis `i` of the result is axis `axes[i]` of `x`. Raises ShapeError.
    """
    order = axes_of(x, axes, where)
    if len(order) != x.rank:
        raise ShapeError(
            f"{where}: axes {tuple(axes)} are not a permutation of the {x.rank} axes of {x}"
        )
    moves = list(range(MAX_RANK))
    for to, axis in enumerate(order):
        moves[x.rank - 1 - axis] = x.rank - 1 - to
    a, b, c, d = moves
    return (a, b, c, d)
