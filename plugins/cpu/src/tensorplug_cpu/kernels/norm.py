"""Rows divided by a statistic of themselves. Results may lie over the source."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step
from tensorplug_cpu.tiles import Temporaries, tiled

_SUM = partial(np.add.reduce, axis=-1, keepdims=True)
Divisor = Callable[[Array], Sequence[Step]]
"""Steps that turn sums of squares into what rows are divided by, in place."""


def _root_mean(row: int, eps: float) -> Divisor:
    def steps(total: Array) -> Sequence[Step]:
        return [
            partial(np.multiply, total, np.float32(1 / row), total),
            partial(np.add, total, np.float32(eps), total),
            partial(np.sqrt, total, total),
        ]

    return steps


def _length(eps: float) -> Divisor:
    def steps(total: Array) -> Sequence[Step]:
        return [
            partial(np.sqrt, total, total),
            partial(np.maximum, total, np.float32(eps), out=total),
        ]

    return steps


def _divided(x: Array, out: Array, divisor: Divisor, scratch: Temporaries) -> Sequence[Step]:
    """Steps that divide rows by a function of their sum of squares."""
    squares, total = scratch(x.shape), scratch((*x.shape[:-1], 1))
    return [
        partial(np.multiply, x, x, squares),
        partial(_SUM, squares, out=total),
        *divisor(total),
        partial(np.divide, x, total, out),
    ]


@kernel("rms_norm")
def rms_norm(task: Task) -> Sequence[Step]:
    """Each row divided by its root mean square."""
    row, eps = task.node.ne[0], task.number("eps")
    if task.node.size == row and task["x"].array.strides[-1] == 4:
        return [_single_row(task["x"].array.reshape(-1), task.out.array.reshape(-1), eps)]
    divisor = _root_mean(row, eps)

    def tile(out: Array, sources: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
        return _divided(sources[0], out, divisor, scratch)

    return tiled(task, tile, [task["x"]], whole=1)


def _single_row(x: Array, out: Array, eps: float) -> Step:
    """One dot product and one division: what a model does most when it generates."""
    dot, divide, sqrt, row = np.dot, np.divide, math.sqrt, x.size

    def run() -> None:
        divide(x, sqrt(dot(x, x) / row + eps), out)

    return run


@kernel("l2_norm")
def l2_norm(task: Task) -> Sequence[Step]:
    """Each row divided by its length."""
    divisor = _length(task.number("eps"))

    def tile(out: Array, sources: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
        return _divided(sources[0], out, divisor, scratch)

    return tiled(task, tile, [task["x"]], whole=1)


def _centred(x: Array, out: Array, divisor: Divisor, scratch: Temporaries) -> Sequence[Step]:
    """Steps that subtract the mean of each row and divide by the deviation."""
    mean = scratch((*x.shape[:-1], 1))
    return [
        partial(_SUM, x, out=mean),
        partial(np.multiply, mean, np.float32(1 / x.shape[-1]), mean),
        partial(np.subtract, x, mean, out),
        *_divided(out, out, divisor, scratch),
    ]


@kernel("norm")
def norm(task: Task) -> Sequence[Step]:
    """Layer normalisation of each row."""
    divisor = _root_mean(task.node.ne[0], task.number("eps"))

    def tile(out: Array, sources: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
        return _centred(sources[0], out, divisor, scratch)

    return tiled(task, tile, [task["x"]], whole=1)


@kernel("group_norm")
def group_norm(task: Task) -> Sequence[Step]:
    """Groups of channels normalised as one row each."""
    x, out = task["x"].array, task.out.array
    batch, channels = out.shape[:2]
    together = -(-channels // task.integer("groups"))
    steps: list[Step] = []
    for image in range(batch):
        for first in range(0, channels, together):
            group = out[image, first : first + together]
            steps.append(partial(np.copyto, group, x[image, first : first + together]))
            row = Operand(group.reshape(1, 1, 1, -1), task.out.dtype)
            divisor = _root_mean(group.size, task.number("eps"))
            steps += tiled(task, _over(divisor), [row], out=row, whole=1)
    return steps


def _over(divisor: Divisor) -> Callable[[Array, Sequence[Array], Temporaries], Sequence[Step]]:
    def tile(out: Array, sources: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
        return _centred(sources[0], out, divisor, scratch)

    return tile
