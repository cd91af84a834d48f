"""Matrix products, f32 throughout. Weights of other types are decoded a chunk of rows at a time."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from tensorplug.blocks.rows import decode_rows, rows_per_chunk
from tensorplug.device import Array
from tensorplug.dtypes import F32
from tensorplug.ops.ids import NO_ROW
from tensorplug_cpu.kernels.ids import RowIds
from tensorplug_cpu.layout import can_join, join, viewed
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step, split
from tensorplug_cpu.tiles import PARALLEL, load, run_all, side_by_side
from tensorplug_cpu.whole import Params, whole

CHUNK = 1 << 19
"""Elements of a weight that are decoded before they are multiplied: 2 MiB of f32."""
FEW = 4
"""Rows of `x` up to which dot products with rows just decoded are faster than a matrix product."""


def blas_ready(array: Array) -> bool:
    """Whether the BLAS takes the last two dimensions as they are; NumPy's own loop is slow."""
    rows, row = array.shape[-2:]
    outer, inner = array.strides[-2:]
    if rows == 1 or row == 1:
        return bool(inner == 4 or outer == 4)
    return bool((inner == 4 and outer >= 4 * row) or (outer == 4 and inner >= 4 * rows)) and not (
        outer % 4 or inner % 4
    )


def ready(task: Task, operand: Operand) -> tuple[Array, Sequence[Step]]:
    """The operand as f32 that the BLAS takes, and the steps that make it so."""
    if operand.dtype is F32 and blas_ready(operand.array):
        return operand.array, []
    packed = task.scratch(operand.array.shape)
    return packed, [load(operand.array, operand.dtype, packed)]


@kernel("mul_mat")
def mul_mat(task: Task) -> Sequence[Step]:
    """Rows against rows; matrices of `w` serve several of `x`."""
    w = task["w"]
    x, steps = ready(task, task["x"])
    batch, heads = w.array.shape[:2]
    many_x, many_out = (_grouped(a, batch, heads) for a in (x, task.out.array))
    if w.dtype is F32 and blas_ready(w.array):
        weights = w.array[:, None, :, None].swapaxes(-1, -2)
        return [*steps, product(many_x, weights, many_out)]
    room = decoding_room(task, w.array.shape[2], x.shape[3])
    matrices = [
        step
        for b, h in np.ndindex(batch, heads)
        for step in decoded_product(
            task, Operand(w.array[b, h], w.dtype), many_x[b, :, h], many_out[b, :, h], room
        )
    ]
    return [*steps, *matrices]


def _grouped(array: Array, batch: int, heads: int) -> Array:
    """Look at [b, h, m, n] as [batch, copies, heads, copies, m, n], the copies sharing a weight."""
    b, h, m, n = array.shape
    return viewed(array, (batch, b // batch, heads, h // heads, m, n))


def product(x: Array, w: Array, out: Array) -> Step:
    """`x @ w`; dimensions of `x` are joined to one matrix where its layout and `out`'s allow it."""
    k, n = w.shape[-2:]
    if 0 < w.size == k * n and x.flags.c_contiguous and out.flags.c_contiguous:
        return partial(np.matmul, x.reshape(-1, k), w.reshape(k, n), out.reshape(-1, n))
    while x.ndim > 2 and w.shape[-3] == 1 and can_join(x, x.ndim - 3) and can_join(out, x.ndim - 3):
        axis = x.ndim - 3
        x, out, w = join(x, axis), join(out, axis), w.squeeze(axis)
    while x.ndim > 2 and x.shape[0] == w.shape[0] == 1:
        x, w, out = x[0], w[0], out[0]
    return partial(np.matmul, x, w, out)


def decoding_room(task: Task, rows: int, row: int) -> Array:
    """Scratch for the rows of a weight that are decoded at a time."""
    return task.scratch((max(1, min(rows, CHUNK // max(row, 1))), row))


def decoded_product(task: Task, w: Operand, x: Array, out: Array, room: Array) -> Sequence[Step]:
    """Steps for a matrix `w` [n, k] that must be decoded, x [..., m, k] and out [..., m, n]."""
    if x.size <= FEW * x.shape[-1]:
        return _dots(task, w, x, out, room)
    steps: list[Step] = []
    for start in range(0, len(w.array), len(room)):
        part = slice(start, min(start + len(room), len(w.array)))
        weights = room[: part.stop - start]
        lanes = [
            list(_decoding(w, part.start + first, part.start + last, weights[first:last]))
            for first, last in split(len(weights), _threads(task, weights.size))
        ]
        steps += side_by_side(task, lanes)
        steps.append(product(x, weights.T[None, None], out[..., part]))
    return steps


def _threads(task: Task, elements: int) -> int:
    return task.tools.workers.count if elements >= PARALLEL else 1


def _decoding(w: Operand, first: int, last: int, room: Array) -> Iterator[Step]:
    """Steps that turn the rows `first` to `last` of `w` into f32, a chunk at a time."""
    at_once = rows_per_chunk(room.shape[1])
    for start in range(first, last, at_once):
        part = slice(start, min(start + at_once, last))
        weights = room[start - first : part.stop - first]
        if w.dtype.is_block:
            yield partial(decode_rows, w.dtype, w.array[part], weights)
        else:
            yield load(w.array[part], w.dtype, weights)


def _dots(task: Task, w: Operand, x: Array, out: Array, room: Array) -> Sequence[Step]:
    """Steps for few rows of `x`: each thread decodes rows and multiplies them while they are hot.

    One dot product per row of `w`: the BLAS gives a whole matrix to threads of its own, for which
    those of several callers would wait.
    """
    lanes: list[list[Step]] = []
    parts = split(len(w.array), min(_threads(task, w.array.shape[0] * x.shape[-1]), len(room)))
    at_once = min(rows_per_chunk(x.shape[-1]), len(room) // len(parts))
    for lane, (first, last) in enumerate(parts):
        lanes.append([])
        for start in range(first, last, at_once):
            stop = min(start + at_once, last)
            weights = room[lane * at_once :][: stop - start]
            lanes[-1] += _decoding(w, start, stop, weights)
            for index in np.ndindex(x.shape[:-1]):
                target = out[index][start:stop]
                step = partial(
                    np.matmul, weights[:, None], x[index][None, :, None], target[:, None, None]
                )
                lanes[-1].append(step)
    return side_by_side(task, lanes)


@kernel("mul_mat_id")
def mul_mat_id(task: Task) -> Sequence[Step]:
    """Each row against the expert matrix that its id names; rows of one expert go together."""
    return [_Experts(task).run]


class _Experts:
    def __init__(self, task: Task) -> None:
        self._task, self._w = task, Operand(task["w"].array[0], task["w"].dtype)
        x, self._ready = ready(task, task["x"])
        self._x, self._out = x[0], task.out.array[0]
        self._ids = RowIds(task)
        tokens, used, row = self._out.shape
        slots = np.arange(tokens * used)
        self._token, self._slot = slots // used, slots % used
        self._from = self._slot % self._x.shape[1]
        self._rows = task.scratch((tokens * used, self._x.shape[2]))
        self._products = task.scratch((tokens * used, row))
        self._room = None
        if not (self._w.dtype is F32 and blas_ready(self._w.array)):
            self._room = decoding_room(task, row, self._x.shape[2])

    def run(self) -> None:
        for step in self._ready:
            step()
        self._ids()
        ids = self._ids.values
        order = np.argsort(ids, kind="stable")
        edges = np.flatnonzero(np.diff(ids[order])) + 1
        for chosen in np.split(order, edges):
            self._expert(int(ids[chosen[0]]), chosen)

    def _expert(self, expert: int, chosen: Array) -> None:
        if expert == NO_ROW:
            self._out[self._token[chosen], self._slot[chosen]] = 0
            return
        rows, products = self._rows[: len(chosen)], self._products[: len(chosen)]
        rows[...] = self._x[self._token[chosen], self._from[chosen]]
        w = self._w.array[expert]
        if self._room is None:
            np.matmul(rows, w.T, products)
        else:
            weights = Operand(w, self._w.dtype)
            run_all(decoded_product(self._task, weights, rows, products, self._room))
        self._out[self._token[chosen], self._slot[chosen]] = products


@whole("out_prod")
def out_prod(_: Params, a: Array, b: Array) -> Array:
    """Rows become columns, then it is a product; `a` repeats over groups of the batch."""
    d, c = a.shape[:2]
    grouped = b.reshape(d, b.shape[0] // max(d, 1), c, b.shape[1] // max(c, 1), *b.shape[2:])
    product: Array = np.matmul(grouped.swapaxes(-1, -2), a[:, None, :, None])
    return product.reshape(*b.shape[:2], *product.shape[-2:])
