"""Convolutions and pooling. Products with copied windows go a piece at a time."""

from collections.abc import Sequence
from math import prod

from tensorplug.device import Array
from tensorplug.dtypes import F32
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task
from tensorplug_native.encode import Argument, Draft, result, rule, source
from tensorplug_native.program import Code
from tensorplug_native.rules.common import dense, dense_f32, own, plain

COLUMNS = 1 << 19
"""Elements of windows that are held at a time: 2 MiB."""


def _slide(task: Task, dims: int = 2) -> tuple[int, ...]:
    """Strides, paddings and dilations, of two dimensions: 0 is the width, 1 the height."""
    params = task.node.params
    given = [f"{letter}{dim}" for letter in "spd" for dim in (0, 1)]
    neutral = {"s1": 1, "p1": 0, "d0": 1, "d1": 1}
    return tuple(
        int(task.number(name)) if name in params and int(name[1]) < dims else neutral[name]
        for name in given
    )


@rule("im2col")
def im2col(task: Task) -> Sequence[Draft]:
    """Rows of images, or of signals as images of height 1."""
    x, out, kernel = task["x"].array, task.out.array, task["kernel"].array
    if not (plain(task["x"]) and plain(task.out) and dense(task.out, task.out.dtype)):
        return []
    is_2d = bool(task.node.params["is_2d"])
    taps = (kernel.shape[3], kernel.shape[2] if is_2d else 1)
    if not is_2d:
        x, out = x[0][:, :, None], out[0][:, None]
    target = result(task, Operand(out, task.out.dtype))
    windows = source(task, "x", Operand(x, task["x"].dtype))
    integers = (*_slide(task, 1 + is_2d), *taps, out.shape[2])
    return [Draft(Code.IM2COL, target, (windows,), integers=integers)]


@rule("conv_2d")
def conv_2d(task: Task) -> Sequence[Draft]:
    """Windows copied into rows, then their products with the filters; piece by piece."""
    kernel, x, out = task["kernel"], task["x"], task.out
    batch, filters, high, wide = out.array.shape
    joined = out.array.strides[2] == 4 * wide or high == 1
    if not (dense_f32(task) and joined and plain(kernel) and kernel.array.flags.c_contiguous):
        return []
    taps = kernel.array.shape[3], kernel.array.shape[2]
    row = prod(kernel.array.shape[1:])
    rows = source(task, "kernel", Operand(kernel.array.reshape(1, 1, filters, row), kernel.dtype))
    at_once = min(max(1, COLUMNS // row), high * wide)
    columns, drafts = own((1, 1, at_once, row)), []
    for n in range(batch):
        image = source(task, "x", Operand(x.array[n : n + 1], F32))
        pixels = out.array[n].reshape(1, 1, filters, high * wide)
        for first in range(0, high * wide, at_once):
            part = pixels[..., first : first + at_once]
            piece = _part(columns, columns.operand.array[:, :, : part.shape[3]])
            integers = (*_slide(task), *taps, wide, first)
            drafts.append(Draft(Code.IM2COL, piece, (image,), integers=integers))
            target = result(task, Operand(part, F32))
            drafts.append(Draft(Code.MUL_MAT, target, (piece, rows), integers=(0,)))
    return drafts


def _part(argument: Argument, array: Array) -> Argument:
    """The start of memory of the plan's own."""
    return Argument(Operand(array, argument.operand.dtype), array.shape[3])


@rule("conv_2d_dw")
def conv_2d_dw(task: Task) -> Sequence[Draft]:
    """Each channel with a filter of its own."""
    if not (dense_f32(task, "x") and plain(task["kernel"])):
        return []
    sources = (source(task, "kernel"), source(task, "x"))
    return [Draft(Code.CONV_DW, result(task), sources, integers=_slide(task))]


@rule("conv_transpose_1d", "conv_transpose_2d")
def conv_transpose(task: Task) -> Sequence[Draft]:
    """What each place gives to each tap is a product; then all are summed where they belong."""
    kernel, x, out = task["kernel"], task["x"], task.out
    if not (dense_f32(task) and plain(kernel) and kernel.array.flags.c_contiguous):
        return []
    if task.node.op == "conv_transpose_1d":
        images, targets = (o.array.transpose(0, 2, 1, 3) for o in (x, out))
        weights, slide = kernel.array.transpose(1, 2, 0, 3), _slide(task, 1)
    else:
        images, targets, weights = x.array, out.array, kernel.array
        slide = (task.integer("s0"), task.integer("s1"), 0, 0, 1, 1)
    channels, filters, *taps = weights.shape
    count, (high, wide) = prod(taps), images.shape[2:]
    by_tap = weights.reshape(channels, filters * count).T
    at_once = min(filters, max(1, COLUMNS // (count * high * wide)))
    # Rows of channels, as products want them.
    places, products = own((1, 1, high * wide, channels)), own((1, 1, at_once * count, high * wide))
    drafts = []
    for n in range(len(images)):
        turned = source(task, "x", Operand(images[n : n + 1].transpose(0, 2, 3, 1), F32))
        into = _part(places, places.operand.array.reshape(turned.operand.array.shape))
        drafts.append(Draft(Code.COPY, into, (turned,)))
        for first in range(0, filters, at_once):
            target = targets[n : n + 1, first : first + at_once]
            rows = by_tap[first * count : (first + target.shape[1]) * count]
            taken = source(task, "kernel", Operand(rows[None, None], kernel.dtype))
            piece = products.operand.array[:, :, : len(rows)]
            drafts.append(Draft(Code.MUL_MAT, _part(products, piece), (places, taken), (), (0,)))
            pieces = _part(products, piece.reshape(-1, *taps, high * wide))
            sums = result(task, Operand(target, F32))
            drafts.append(Draft(Code.COL2IM, sums, (pieces,), integers=(*slide, wide)))
    return drafts


@rule("col2im_1d")
def col2im_1d(task: Task) -> Sequence[Draft]:
    """Pieces of a signal, summed where they belong."""
    x, out = task["x"], task.out
    if not (dense_f32(task) and x.dtype is F32 and x.array.flags.c_contiguous):
        return []
    times, row = x.array.shape[2:]
    channels = task.integer("oc")
    taps = x.array.reshape(times, channels, 1, row // channels).transpose(1, 2, 3, 0)
    pieces = source(task, "x", Operand(taps, F32))
    integers = (task.integer("s0"), 1, task.integer("p0"), 0, 1, 1, times)
    sums = result(task, Operand(out.array.transpose(0, 2, 1, 3), F32))
    return [Draft(Code.COL2IM, sums, (pieces,), integers=integers)]


@rule("pool_1d", "pool_2d")
def pool(task: Task) -> Sequence[Draft]:
    """The largest or the mean of windows; in signals only elements that are there count."""
    if not dense_f32(task, "x"):
        return []
    # A signal is a row of an image whose windows are one row high.
    dims = int(task.node.op[5])
    taps = (task.integer("k0"), task.integer("k1") if dims == 2 else 1)
    kinds = (int(task.node.params["kind"] == "max"), int(dims == 1))
    integers = (*_slide(task, dims), *taps, *kinds)
    return [Draft(Code.POOL, result(task), (source(task, "x"),), integers=integers)]
