"""Softmax of rows, and the causal mask. Results may lie over the source."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from tensorplug.device import Array
from tensorplug.dtypes import F32
from tensorplug_cpu.layout import viewed
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step
from tensorplug_cpu.tiles import Temporaries, tiled

_MAX = partial(np.maximum.reduce, axis=-1, keepdims=True)
_SUM = partial(np.add.reduce, axis=-1, keepdims=True)


def slopes(heads: int, max_bias: float) -> Array:
    """The factor of the mask for each head: f32 [heads], all 1 without `max_bias`."""
    if not max_bias:
        return np.ones(heads, np.float32)
    power = 1 << int(math.log2(heads))
    first, second = 2 ** (-max_bias / power), 2 ** (-max_bias / 2 / power)
    values = [
        first ** (h + 1) if h < power else second ** (2 * (h - power) + 1) for h in range(heads)
    ]
    return np.array(values, np.float32)


def heads_split(array: Array, mask: Array) -> tuple[int, ...]:
    """Shape of `array` [batch, heads, ...] with dimensions split where `mask` repeats in them."""
    batch, heads = mask.shape[:2]
    return (array.shape[0] // batch, batch, array.shape[1] // heads, heads, *array.shape[2:])


@kernel("soft_max")
def soft_max(task: Task) -> Sequence[Step]:
    """`softmax(scale * x + slope * mask)`, sinks in the divisor only."""
    x, mask, sinks = task["x"], task.get("mask"), task.get("sinks")
    scale, max_bias = np.float32(task.number("scale")), task.number("max_bias")
    rows, heads = x.array.shape[2], x.array.shape[1]
    window = np.empty((1, 1, 1, 1)) if mask is None else mask.array[:, :, :rows]
    split = heads_split(x.array, window)
    sources = [Operand(viewed(x.array, split), x.dtype)]
    per_head = (1, 1, *split[2:4], 1, 1)
    if mask is not None:
        sources.append(Operand(window[None, :, None], mask.dtype))
    if max_bias:
        slope = slopes(heads, max_bias)
        sources.append(Operand(slope.reshape(per_head), F32))
    if sinks is not None:
        sources.append(Operand(viewed(sinks.array, per_head), F32))

    def tile(out: Array, views: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
        rest = list(views[1:])
        bias = rest.pop(0) if mask is not None else None
        slope = rest.pop(0) if max_bias else None
        scored = _scored(views[0], out, scale, bias, slope, scratch)
        return [*scored, *normalised(out, rest[0] if rest else None, scratch)]

    return tiled(task, tile, sources, out=Operand(viewed(task.out.array, split), F32), whole=1)


def _scored(
    x: Array,
    out: Array,
    scale: np.float32,
    mask: Array | None,
    slope: Array | None,
    scratch: Temporaries,
) -> Sequence[Step]:
    """Steps for `out = scale * x + slope * mask`."""
    if mask is None:
        return [partial(np.multiply, x, scale, out)]
    steps: list[Step] = []
    if slope is not None:
        sloped = scratch(np.broadcast_shapes(mask.shape, slope.shape))
        steps.append(partial(np.multiply, mask, slope, sloped))
        mask = sloped
    if scale == 1:
        return [*steps, partial(np.add, x, mask, out)]
    return [*steps, partial(np.multiply, x, scale, out), partial(np.add, out, mask, out)]


def normalised(scores: Array, sinks: Array | None, scratch: Temporaries) -> Sequence[Step]:
    """Steps that replace rows by their softmax. A row of -inf becomes NaN unless it has a sink."""
    column = (*scores.shape[:-1], 1)
    top, total = scratch(column), scratch(column)
    steps: list[Step] = [partial(_MAX, scores, out=top)]
    if sinks is not None:
        steps.append(partial(np.maximum, top, sinks, out=top))
    steps += [
        partial(np.subtract, scores, top, scores),
        partial(np.exp, scores, scores),
        partial(_SUM, scores, out=total),
    ]
    if sinks is not None:
        steps += [
            partial(np.subtract, sinks, top, top),
            partial(np.exp, top, top),
            partial(np.add, total, top, total),
        ]
    return [*steps, partial(np.divide, scores, total, scores)]


@kernel("diag_mask_inf")
def diag_mask_inf(task: Task) -> Sequence[Step]:
    """-inf right of a diagonal."""
    x, out = task["x"], task.out
    rows, columns = out.array.shape[2:]
    ahead = np.arange(columns) > np.arange(rows)[:, None] + task.integer("n_past")
    # The bits of -inf in the type of x: bf16 is stored as integers.
    minus = np.float32(-np.inf) if out.array.dtype.kind == "f" else np.uint16(0xFF80)
    return [
        partial(np.copyto, out.array, x.array),
        partial(np.copyto, out.array, minus, where=ahead),
    ]
