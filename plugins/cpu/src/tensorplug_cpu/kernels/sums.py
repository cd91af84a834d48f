"""Sums of a few products of arrays that broadcast to the result."""

from collections.abc import Sequence
from functools import partial
from itertools import chain

import numpy as np

from tensorplug.device import Array
from tensorplug.dtypes import F32
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task
from tensorplug_cpu.threads import Step
from tensorplug_cpu.tiles import Temporaries, tiled


def sum_of_products(task: Task, pairs: Sequence[tuple[Array, Array]], out: Array) -> list[Step]:
    """Steps for `out = a0 * b0 + a1 * b1 + ...`. All arrays are f32 of the same rank."""
    sources = [Operand(array, F32) for array in chain.from_iterable(pairs)]
    return tiled(task, _tile, sources, out=Operand(out, F32))


def _tile(out: Array, views: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
    steps: list[Step] = [partial(np.multiply, views[0], views[1], out)]
    product = scratch(out.shape)
    for a, b in zip(views[2::2], views[3::2], strict=True):
        steps.append(partial(np.multiply, a, b, product))
        steps.append(partial(np.add, out, product, out))
    return steps
