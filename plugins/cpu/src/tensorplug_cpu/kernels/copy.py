"""Copies: to other memory, other layout, other type; joined, tiled, or into a part of a tensor."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tensorplug.blocks.rows import decode_rows, rows_per_chunk
from tensorplug.device import Array
from tensorplug.dtypes import BF16, F32, DType
from tensorplug_cpu.encode import encode_rows
from tensorplug_cpu.kernels.elementwise import repeated
from tensorplug_cpu.layout import same_memory, viewed
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step
from tensorplug_cpu.tiles import Temporaries, load, store, tiled, tiles


@kernel("dup", "cont", "cpy")
def copy(task: Task) -> Sequence[Step]:
    """Elements in order, converted to the type of the result."""
    return copied(task, task["x"], task.out)


def copied(task: Task, x: Operand, out: Operand) -> Sequence[Step]:
    """Steps that copy `x` to `out`; types and shapes may differ, the number of elements not."""
    if x.dtype is out.dtype:
        if same_memory(x.array, out.array):
            return []
        steps, source, target = _alike(task, x.array, out.array)
        return [*steps, partial(np.copyto, target, source)]
    if x.dtype.is_block:
        return _decoded(task, x, out)
    if out.dtype.is_block:
        return _encoded(task, x, out)
    steps, source, target = _alike(task, x.array, out.array)
    return [*steps, *_converted(task, Operand(source, x.dtype), Operand(target, out.dtype))]


def _alike(task: Task, x: Array, out: Array) -> tuple[Sequence[Step], Array, Array]:
    """Both in one shape; where neither can be reshaped without a copy, `x` is packed first."""
    if x.shape == out.shape:
        return [], x, out
    if x.flags.c_contiguous:
        return [], x.reshape(out.shape), out
    if out.flags.c_contiguous:
        return [], x, out.reshape(x.shape)
    packed = task.scratch(x.shape, x.dtype)
    return [partial(np.copyto, packed, x)], packed.reshape(out.shape), out


def _converted(task: Task, x: Operand, out: Operand) -> Sequence[Step]:
    """Steps from one type of number to another, of one shape."""
    through_f32 = BF16 in (x.dtype, out.dtype) and F32 not in (x.dtype, out.dtype)

    def tile(target: Array, sources: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
        (source,) = sources
        if through_f32:
            wide = scratch(source.shape)
            return [load(source, x.dtype, wide), store(wide, out.dtype, target)]
        if out.dtype is F32:
            return [load(source, x.dtype, target)]
        return [store(source, out.dtype, target)]

    # Called f32 so that nothing is widened on the way in: the tile does all the converting.
    return tiled(task, tile, [Operand(x.array, F32)], out=Operand(out.array, F32))


def _decoded(task: Task, x: Operand, out: Operand) -> Sequence[Step]:
    """Steps from blocks to another type."""
    shape = (*x.array.shape[:3], task.source("x").ne[0])
    if out.dtype.is_block or not (out.array.shape == shape or out.array.flags.c_contiguous):
        packed = Operand(task.scratch(shape), F32)
        return [*_decoded(task, x, packed), *copied(task, packed, out)]
    target = out.array.reshape(shape)
    steps: list[Step] = []
    stored, wide = _room(task, x.dtype, shape)
    for piece in tiles(shape[:3], rows_per_chunk(shape[3]), 0):
        part = x.array[piece]
        raw = stored[: part.size].reshape(part.shape)
        values = wide[: target[piece].size].reshape(target[piece].shape)
        steps += [
            partial(np.copyto, raw, part),
            partial(
                decode_rows, x.dtype, raw.reshape(-1, part.shape[-1]), values.reshape(-1, shape[3])
            ),
            store(values, out.dtype, target[piece]),
        ]
    return steps


def _encoded(task: Task, x: Operand, out: Operand) -> Sequence[Step]:
    """Steps from numbers to blocks."""
    shape = (*out.array.shape[:3], task.node.ne[0])
    steps: list[Step] = []
    source = x.array
    if source.shape != shape:
        if not source.flags.c_contiguous:
            source = task.scratch(x.array.shape, x.array.dtype)
            steps.append(partial(np.copyto, source, x.array))
        source = source.reshape(shape)
    stored, wide = _room(task, out.dtype, shape)
    for piece in tiles(shape[:3], rows_per_chunk(shape[3]), 0):
        part, target = source[piece], out.array[piece]
        values = wide[: part.size].reshape(part.shape)
        raw = stored[: target.size].reshape(target.shape)
        steps += [
            load(part, x.dtype, values),
            partial(
                encode_rows,
                out.dtype,
                values.reshape(-1, shape[3]),
                raw.reshape(-1, target.shape[-1]),
            ),
            partial(np.copyto, target, raw),
        ]
    return steps


def _room(task: Task, dtype: DType, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Scratch for a chunk of rows, as stored bytes and as f32."""
    rows = min(rows_per_chunk(shape[3]), shape[0] * shape[1] * shape[2])
    return (
        task.scratch((rows * dtype.row_size(shape[3]),), np.uint8),
        task.scratch((rows * shape[3],)),
    )


@kernel("concat")
def concat(task: Task) -> Sequence[Step]:
    """One tensor after the other."""
    a, b, out = task["a"].array, task["b"].array, task.out.array
    axis = 3 - task.integer("dim")
    before: tuple[slice, ...] = (slice(None),) * axis
    edge = a.shape[axis]
    return [
        partial(np.copyto, out[(*before, slice(edge))], a),
        partial(np.copyto, out[(*before, slice(edge, None))], b),
    ]


@kernel("repeat")
def repeat(task: Task) -> Sequence[Step]:
    """Copies side by side."""
    out, x, _ = repeated(task.out, task["x"], task.out)
    return [partial(np.copyto, out.array, x.array)]


@kernel("acc", "set")
def into_part(task: Task) -> Sequence[Step]:
    """A copy of one tensor with another added to, or put into, a window of it."""
    a, part, out = task["a"].array, task["part"].array, task.out.array
    steps: list[Step] = [] if same_memory(a, out) else [partial(np.copyto, out, a)]
    offset = task.integer("offset")
    first = viewed(out, (-1,)).view(np.uint8)[offset : offset + 4].view(np.float32)
    strides = (*(task.integer(n) for n in ("nb3", "nb2", "nb1")), 4)
    window = as_strided(first, part.shape, strides)
    if task.node.op == "set":
        return [*steps, partial(np.copyto, window, part)]
    return [*steps, partial(np.add, window, part, window)]
