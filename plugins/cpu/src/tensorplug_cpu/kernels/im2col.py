"""Windows copied into rows, tap by tap, and summed back."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from tensorplug.device import Array
from tensorplug.dtypes import F32
from tensorplug_cpu.kernels.windows import Slide, converted, with_zeros
from tensorplug_cpu.layout import viewed
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step

LONG = 16
"""Taps in a row from which on one copy of all of them is faster than one for each."""


@kernel("im2col")
def im2col(task: Task) -> Sequence[Step]:
    """Rows of images, or of signals as images of height 1."""
    x, taps, params = task["x"], task["kernel"].array.shape[2:], dict(task.node.params)
    if not params["is_2d"]:
        _, batch, channels, length = x.array.shape
        x = Operand(viewed(x.array, (batch, channels, 1, length)), x.dtype)
        taps = (1, taps[1])
        params |= {"s1": 1, "p1": 0, "d1": 1}
    return _rows(task, x, Slide.of(params, taps))


@kernel("im2col_3d")
def im2col_3d(task: Task) -> Sequence[Step]:
    """Rows of volumes."""
    x, channels = task["x"], task.integer("n_channels")
    volumes = viewed(x.array, (len(x.array) // channels, channels, *x.array.shape[1:]))
    slide = Slide.of(task.node.params, task["kernel"].array.shape[1:])
    return _rows(task, Operand(volumes, x.dtype), slide)


def _rows(task: Task, x: Operand, slide: Slide) -> Sequence[Step]:
    """Steps for `x` [n, c, ...] to rows [n, windows, c, taps]."""
    dims = len(slide.taps)
    padded, steps = with_zeros(task, x, slide, task.out.dtype)
    windows = slide.windows(padded)
    batch, channels, counts = *windows.shape[:2], windows.shape[2 + dims :]
    out = viewed(task.out.array, (batch, *counts, channels, *slide.taps))
    source = np.moveaxis(windows, range(2 + dims, 2 + 2 * dims), range(1, 1 + dims))
    if slide.taps[-1] >= LONG:
        return [*steps, partial(np.copyto, out, source)]
    # The taps of a row are few: NumPy copies one number of all rows at a time.
    return [
        *steps,
        *[
            partial(np.copyto, out[(..., *tap)], source[(..., *tap)])
            for tap in np.ndindex(slide.taps)
        ],
    ]


@kernel("im2col_back")
def im2col_back(task: Task) -> Sequence[Step]:
    """What comes back to each tap, added where the tap was."""
    params, taps = dict(task.node.params), task["kernel"].array.shape[2:]
    out = task.out.array
    if not params["is_2d"]:
        _, batch, channels, length = out.shape
        out = viewed(out, (batch, channels, 1, length))
        taps = (1, taps[1])
        params |= {"s1": 1, "p1": 0, "d1": 1}
    slide = Slide.of(params, taps)
    sums = (
        out if not any(slide.pads) else task.scratch((*out.shape[:2], *slide.padded(out.shape[2:])))
    )
    windows = slide.windows(sums)
    grad = task["grad"].array
    pieces = viewed(grad, (len(out), *windows.shape[4:], out.shape[1], *taps))
    steps: list[Step] = [partial(sums.fill, 0), *added(pieces.transpose(0, 3, 4, 5, 1, 2), windows)]
    return steps if sums is out else [*steps, partial(np.copyto, out, slide.inside(sums))]


def added(pieces: Array, windows: Array) -> Sequence[Step]:
    """Steps that add [n, c, taps, windows] to windows that overlap, one tap at a time."""
    dims = (windows.ndim - 2) // 2
    return [
        partial(np.add, into, pieces[(slice(None), slice(None), *tap)], into)
        for tap in np.ndindex(windows.shape[2 : 2 + dims])
        for into in [windows[(slice(None), slice(None), *tap)]]
    ]


@kernel("col2im_1d")
def col2im_1d(task: Task) -> Sequence[Step]:
    """Pieces of a signal, added where each belongs."""
    x, channels, crop = task["x"], task.integer("oc"), task.integer("p0")
    times, row = x.array.shape[2:]
    taps = row // channels
    sums = task.scratch((1, channels, (times - 1) * task.integer("s0") + taps))
    slide = Slide((taps,), (task.integer("s0"),), (crop,), (1,))
    wide, steps = x.array, []
    if x.dtype is not F32:
        wide = task.scratch(x.array.shape)
        steps = [*converted(task, x, Operand(wide, F32))]
    pieces = viewed(wide, (1, times, channels, taps)).transpose(0, 2, 3, 1)
    cropped = Operand(slide.inside(sums)[None], F32)
    return [
        *steps,
        partial(sums.fill, 0),
        *added(pieces, slide.windows(sums)),
        *converted(task, cropped, task.out),
    ]
