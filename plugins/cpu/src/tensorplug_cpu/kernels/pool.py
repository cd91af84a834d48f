"""The largest or the mean of windows: all windows at once, one tap after another."""

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from tensorplug.device import Array
from tensorplug.dtypes import F32
from tensorplug_cpu.kernels.im2col import added
from tensorplug_cpu.kernels.windows import Slide, along_last, converted
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step, split
from tensorplug_cpu.tiles import PARALLEL, TILE, side_by_side, tiles

_LOWEST = np.finfo(np.float32).min
"""The largest of no elements."""


@kernel("pool_1d")
def pool_1d(task: Task) -> Sequence[Step]:
    """Rows; only elements that are there count in a mean."""
    windows, steps = _windows(task, task["x"], 1, task.out.array.shape[3:])
    length, step, pad = (task.integer(name) for name in ("k0", "s0", "p0"))
    starts = np.arange(task.out.array.shape[3]) * step - pad
    inside = np.minimum(starts + length, task["x"].array.shape[3]) - np.maximum(starts, 0)
    return [*steps, *_pooled(task, windows, np.maximum(inside, 1).astype(np.float32))]


@kernel("pool_2d")
def pool_2d(task: Task) -> Sequence[Step]:
    """Images."""
    windows, steps = _windows(task, task["x"], 2, task.out.array.shape[2:])
    taps = np.float32(task.integer("k0") * task.integer("k1"))
    return [*steps, *_pooled(task, windows, taps)]


def _slide(task: Task, dims: int) -> Slide:
    order = range(dims)[::-1]
    taps, steps = (tuple(task.integer(f"{letter}{dim}") for dim in order) for letter in "ks")
    return Slide(taps, steps, (0,) * dims, (1,) * dims)


def _room(task: Task, sizes: Sequence[int], counts: Sequence[int]) -> tuple[Array, Array]:
    """Memory for arrays of `sizes` with all that windows see beyond, and the part of it inside."""
    dims = len(counts)
    slide = _slide(task, dims)
    pads = [int(task.number(f"p{dim}")) for dim in range(dims)[::-1]]
    ends = [(n - 1) * s + k for n, s, k in zip(counts, slide.steps, slide.taps, strict=True)]
    inner = sizes[-dims:]
    full = [max(end, pad + n) for end, pad, n in zip(ends, pads, inner, strict=True)]
    array = task.scratch((*sizes[:-dims], *full))
    inside = array[along_last([slice(pad, pad + n) for pad, n in zip(pads, inner, strict=True)])]
    return array, inside


def _windows(
    task: Task, x: Operand, dims: int, counts: Sequence[int]
) -> tuple[Array, Sequence[Step]]:
    """Windows [..., taps, windows] of `x` as f32, and the steps that fill in what is beyond."""
    around, inside = _room(task, x.array.shape, counts)
    slide = _slide(task, dims)
    if around.shape == x.array.shape and x.dtype is F32:
        return slide.windows(x.array), []
    beyond = _LOWEST if task.node.params["kind"] == "max" else 0
    steps: list[Step] = [partial(around.fill, beyond), *converted(task, x, Operand(inside, F32))]
    return slide.windows(around), steps


def _pooled(task: Task, windows: Array, counted: Array | np.float32) -> Sequence[Step]:
    """Steps that pool windows, for some rows or images at a time."""
    out = task.out.array
    dims = windows.ndim - out.ndim
    largest = task.node.params["kind"] == "max"
    pieces = list(tiles(out.shape, TILE, dims))
    threads = task.tools.workers.count if windows.size >= PARALLEL else 1
    lanes: list[list[Step]] = []
    for first, last in split(len(pieces), threads):
        lanes.append([])
        for piece in pieces[first:last]:
            target, seen = out[piece], windows[piece]
            by_tap = [_at(seen, tap, dims) for tap in np.ndindex(seen.shape[-2 * dims : -dims])]
            join = np.maximum if largest else np.add
            lanes[-1].append(partial(target.fill, _LOWEST if largest else 0))
            lanes[-1] += [partial(join, target, view, out=target) for view in by_tap]
            if not largest:
                lanes[-1].append(partial(np.divide, target, counted, target))
    return side_by_side(task, lanes)


def _at(windows: Array, tap: Sequence[int], dims: int) -> Array:
    part: Array = windows[along_last([*tap, *[slice(None)] * dims])]
    return part


@kernel("pool_2d_back")
def pool_2d_back(task: Task) -> Sequence[Step]:
    """What comes back to each window, added where its largest element, or all of it, was."""
    grad, out = task["grad"].array, task.out.array
    sums, inside = _room(task, out.shape, grad.shape[2:])
    into = _slide(task, 2).windows(sums)
    steps: Sequence[Step]
    if task.node.params["kind"] == "avg":
        shares = task.scratch(grad.shape)
        taps = np.float32(prod(into.shape[2:4]))
        pieces = np.broadcast_to(shares[:, :, None, None], into.shape)
        steps = [partial(np.divide, grad, taps, shares), *added(pieces, into)]
    else:
        steps = _to_largest(task, into)
    return [partial(sums.fill, 0), *steps, partial(np.copyto, out, inside)]


def _to_largest(task: Task, into: Array) -> list[Step]:
    """Steps that find the first largest element of each window, then add what comes back there."""
    grad = task["grad"].array
    windows, filling = _windows(task, task["x"], 2, grad.shape[2:])
    best, where, found = (task.scratch(grad.shape, t) for t in (np.float32, np.intp, np.bool_))
    steps: list[Step] = [*filling, partial(best.fill, _LOWEST), partial(where.fill, -1)]
    taps = list(enumerate(np.ndindex(into.shape[2:4])))
    for number, (i, j) in taps:
        seen = windows[:, :, i, j]
        steps += [
            partial(np.greater, seen, best, found),
            partial(np.copyto, best, seen, where=found),
            partial(np.copyto, where, number, where=found),
        ]
    for number, (i, j) in taps:
        target = into[:, :, i, j]
        steps += [
            partial(np.equal, where, number, found),
            partial(np.add, target, grad, target, where=found),
        ]
    return steps
