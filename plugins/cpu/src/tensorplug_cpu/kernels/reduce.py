"""Many elements to one, along rows or over all; running sums and orders of rows."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tensorplug.device import Array
from tensorplug.dtypes import F32
from tensorplug_cpu.layout import compact
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step
from tensorplug_cpu.tiles import TILE, WHOLE, Temporaries, load, store, tiled, tiles
from tensorplug_cpu.whole import Params, whole


@kernel("sum")
def sum_all(task: Task) -> Sequence[Step]:
    """The sum of all elements, accumulated in f64."""
    (x,), kind = compact([task["x"].array]), task["x"].dtype
    pieces = list(tiles(x.shape, TILE, 0)) if kind is not F32 else [()]
    parts = task.scratch((len(pieces), 1), np.float64)
    total = task.scratch((1, 1, 1, 1))
    wide = task.scratch((min(x.size, TILE),)) if kind is not F32 else x
    steps: list[Step] = []
    for piece, part in zip(pieces, parts, strict=True):
        values = x
        if kind is not F32:
            values = wide[: x[piece].size].reshape(x[piece].shape)
            steps.append(load(x[piece], kind, values))
        steps.append(partial(np.add.reduce, values, None, np.float64, part.reshape(())))
    return [
        *steps,
        partial(np.add.reduce, parts, 0, np.float64, total.reshape(1)),
        store(total, task.out.dtype, task.out.array),
    ]


@kernel("sum_rows", "mean")
def row_sums(task: Task) -> Sequence[Step]:
    """The sum or the mean of each row."""
    length = np.float32(task.source("x").ne[0]) if task.node.op == "mean" else None

    def tile(out: Array, sources: Sequence[Array], _: Temporaries) -> Sequence[Step]:
        steps: list[Step] = [partial(np.add.reduce, sources[0], -1, None, out, keepdims=True)]
        return steps if length is None else [*steps, partial(np.divide, out, length, out)]

    return tiled(task, tile, [task["x"]], whole=1, limit=WHOLE)


@kernel("cumsum")
def cumsum(task: Task) -> Sequence[Step]:
    """Running sums along rows."""

    def tile(out: Array, sources: Sequence[Array], _: Temporaries) -> Sequence[Step]:
        return [partial(np.add.accumulate, sources[0], -1, None, out)]

    return tiled(task, tile, [task["x"]], whole=1, limit=WHOLE)


@kernel("argmax")
def argmax(task: Task) -> Sequence[Step]:
    """The index of the first largest element of each row."""
    x, out = task["x"].array[0, 0], task.out.array[0, 0, 0]
    if not x.size:
        return [partial(out.fill, 0)]
    found = task.scratch((len(x),), np.intp)
    return [partial(np.argmax, x, axis=-1, out=found), partial(_narrow, found, out)]


def _narrow(found: Array, out: Array) -> None:
    np.copyto(out, found, casting="same_kind")


@kernel("argsort")
def argsort(task: Task) -> Sequence[Step]:
    """Indices that sort each row; NaN goes last either way."""
    descending = bool(task.node.params["descending"])

    def order(x: Array) -> Array:
        return np.argsort(x, axis=-1, kind="stable")

    return _ordered(task, order, negated=descending)


@kernel("top_k")
def top_k(task: Task) -> Sequence[Step]:
    """Indices of the largest elements of each row."""
    k = task.integer("k")

    def order(x: Array) -> Array:
        return np.argpartition(x, k - 1, axis=-1)[..., :k]

    return _ordered(task, order, negated=True)


def _ordered(task: Task, order: Callable[[Array], Array], *, negated: bool) -> Sequence[Step]:
    """Steps that write an order of each row, a tile of rows at a time."""

    def tile(out: Array, sources: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
        (x,) = sources
        if not negated:
            return [lambda: _narrow(order(x), out)]
        minus = scratch(x.shape)
        return [partial(np.negative, x, minus), lambda: _narrow(order(minus), out)]

    # Called f32 so that the indices are written as they are.
    return tiled(task, tile, [task["x"]], out=Operand(task.out.array, F32), whole=1)


@whole("count_equal")
def count_equal(_: Params, a: Array, b: Array) -> Array:
    """How many places are equal."""
    return np.full((1, 1, 1, 1), np.count_nonzero(a == b), np.int64)
