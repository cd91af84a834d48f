"""Convolutions as matrix products with copied windows; those by depth tap by tap."""

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.kernels.im2col import added
from tensorplug_cpu.kernels.matmul import blas_ready
from tensorplug_cpu.kernels.windows import Slide, packed, with_zeros
from tensorplug_cpu.layout import viewed
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step, split
from tensorplug_cpu.tiles import PARALLEL, TILE, side_by_side, tiles

COLUMNS = 1 << 20
"""Elements of windows that are held at a time: 4 MiB."""
_ALL = (slice(None),) * 4


@kernel("conv_2d")
def conv_2d(task: Task) -> Sequence[Step]:
    """Images."""
    slide = Slide.of(task.node.params, task["kernel"].array.shape[2:])
    return _convolved(task, task["x"].array, slide, task.out.array)


@kernel("conv_3d")
def conv_3d(task: Task) -> Sequence[Step]:
    """Volumes; batch and channels share a dimension."""
    x, out, batch = task["x"].array, task.out.array, task.integer("n_batch")
    slide = Slide.of(task.node.params, task["kernel"].array.shape[1:])
    by_image = [viewed(a, (batch, len(a) // batch, *a.shape[1:])) for a in (x, out)]
    return _convolved(task, by_image[0], slide, by_image[1])


def _convolved(task: Task, x: Array, slide: Slide, out: Array) -> Sequence[Step]:
    """Steps for `x` [n, c, ...] and `out` [n, o, ...]: filters times columns, image by image."""
    filters, steps = packed(task, task["kernel"])
    row, dims = x.shape[1] * prod(slide.taps), len(slide.taps)
    filters = filters.reshape(out.shape[1], row)
    pieces = list(tiles(out.shape[2:], max(1, COLUMNS // max(row, 1)), 0))
    columns = task.scratch((row * max(prod(out[0, 0][piece].shape) for piece in pieces),))
    result: list[Step] = list(steps)
    image = None
    if any(slide.pads):
        # The zeros around it stay as they are from image to image.
        image = task.scratch((x.shape[1], *slide.padded(x.shape[2:])))
        result.append(partial(image.fill, 0))
    for source, target in zip(x, out, strict=True):
        if image is not None:
            result.append(partial(np.copyto, slide.inside(image), source))
        windows = slide.windows(source if image is None else image)
        for piece in pieces:
            seen, wanted = windows[(*_ALL[: 1 + dims], *piece)], target[(*_ALL[:1], *piece)]
            matrix, copying = _columns(task, seen, slide, columns)
            flat = viewed(wanted, (len(wanted), matrix.shape[1]))
            result += [*copying, partial(np.matmul, filters, matrix, flat)]
    return result


def _columns(task: Task, windows: Array, slide: Slide, room: Array) -> tuple[Array, Sequence[Step]]:
    """Windows [c, taps, windows] as a matrix [c * taps, windows], and the steps that copy them."""
    count = prod(windows.shape[1 + len(slide.taps) :])
    shape = (windows.shape[0] * prod(slide.taps), count)
    if prod(slide.taps) == 1:
        matrix = windows.reshape(shape)
        if np.may_share_memory(matrix, windows) and blas_ready(matrix):
            return matrix, []
    copy = room[: windows.size].reshape(windows.shape)
    threads = task.tools.workers.count if copy.size >= PARALLEL else 1
    lanes = [
        [partial(np.copyto, copy[first:last], windows[first:last])]
        for first, last in split(len(windows), threads)
    ]
    return copy.reshape(shape), side_by_side(task, lanes)


@kernel("conv_2d_dw")
def conv_2d_dw(task: Task) -> Sequence[Step]:
    """A product with each tap of the filters, added up, for some channels at a time."""
    filters, widening = packed(task, task["kernel"])
    slide = Slide.of(task.node.params, filters.shape[2:])
    padded, padding = with_zeros(task, task["x"], slide)
    windows, out = slide.windows(padded), task.out.array
    pieces = list(tiles(out.shape, TILE, 2))
    threads = task.tools.workers.count if out.size * prod(slide.taps) >= PARALLEL else 1
    lanes: list[list[Step]] = []
    for first, last in split(len(pieces), threads):
        room = task.scratch((max(out[piece].size for piece in pieces[first:last]),))
        lanes.append([])
        for piece in pieces[first:last]:
            target = out[piece]
            product = room[: target.size].reshape(target.shape)
            by_channel = filters[piece[1] if len(piece) > 1 else slice(None), 0]
            lanes[-1] += _weighted(windows[piece], by_channel, target, product)
    return [*widening, *padding, *side_by_side(task, lanes)]


def _weighted(windows: Array, filters: Array, out: Array, product: Array) -> Iterator[Step]:
    """Steps that sum windows [n, c, kh, kw, h, w] times filters [c, kh, kw] over the taps."""
    for i, j in np.ndindex(filters.shape[1:]):
        seen, factor = windows[:, :, i, j], filters[:, i, j, None, None]
        if i == j == 0:
            yield partial(np.multiply, seen, factor, out)
            continue
        yield partial(np.multiply, seen, factor, product)
        yield partial(np.add, out, product, out)


@kernel("conv_transpose_1d")
def conv_transpose_1d(task: Task) -> Sequence[Step]:
    """Signals: images of one dimension."""
    filters, steps = packed(task, task["kernel"])
    step, pad, dilation = ((task.integer(name),) for name in ("s0", "p0", "d0"))
    slide = Slide((filters.shape[3],), step, pad, dilation)
    spread = _spread(task, task["x"], filters[0], slide, task.out.array[0])
    return [*steps, *spread]


@kernel("conv_transpose_2d")
def conv_transpose_2d(task: Task) -> Sequence[Step]:
    """Images."""
    filters, steps = packed(task, task["kernel"])
    strides = task.integer("s1"), task.integer("s0")
    slide = Slide(filters.shape[2:], strides, (0, 0), (1, 1))
    return [*steps, *_spread(task, task["x"], filters, slide, task.out.array)]


def _spread(task: Task, x: Operand, filters: Array, slide: Slide, out: Array) -> Sequence[Step]:
    """Steps for `out` [n, o, ...]: pixels times filters [c, o, taps], added where they overlap."""
    pixels, steps = packed(task, x)
    taps, places = prod(slide.taps), prod(x.array.shape[-len(slide.taps) :])
    pixels, row = pixels.reshape(len(out), len(filters), places), taps * places
    sums = out
    if any(slide.pads):
        sums = task.scratch((*out.shape[:2], *slide.padded(out.shape[2:])))
    result: list[Step] = [*steps, partial(sums.fill, 0)]
    at_once = max(1, COLUMNS // max(row, 1))
    room = task.scratch((min(at_once, out.shape[1]) * row,))
    windows = slide.windows(sums)
    for n in range(len(out)):
        for start in range(0, out.shape[1], at_once):
            into = windows[n : n + 1, start : start + at_once]
            some = filters[:, start : start + at_once]
            matrix = viewed(some, (len(filters), some.shape[1] * taps))
            product = room[: into.size].reshape(matrix.shape[1], places)
            result.append(partial(np.matmul, matrix.T, pixels[n], product))
            result += added(product.reshape(into.shape), into)
    return result if sums is out else [*result, partial(np.copyto, out, slide.inside(sums))]
