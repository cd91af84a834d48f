"""Matrix products, f32 throughout. Weights of other types are decoded a chunk of rows at a time."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from tensorplug.dtypes import F32
from tensorplug.tensor import Array
from tensorplug_cpu.decode import CHUNK as DECODE_CHUNK
from tensorplug_cpu.decode import decode_rows, rows_per_chunk
from tensorplug_cpu.kernels.ids import RowIds
from tensorplug_cpu.layout import can_join, join, viewed
from tensorplug_cpu.task import Operand, Task, kernel
from tensorplug_cpu.threads import Step, split
from tensorplug_cpu.tiles import load, run_all, side_by_side

CHUNK = 1 << 19
"""Elements of a weight that are decoded before they are multiplied: 2 MiB of f32."""


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
    matrices = [
        step
        for b, h in np.ndindex(batch, heads)
        for step in _decoded(task, w, (b, h), many_x[b, :, h], many_out[b, :, h])
    ]
    return [*steps, *matrices]


def _grouped(array: Array, batch: int, heads: int) -> Array:
    """Look at [b, h, m, n] as [batch, copies, heads, copies, m, n], the copies sharing a weight."""
    b, h, m, n = array.shape
    return viewed(array, (batch, b // batch, heads, h // heads, m, n))


def product(x: Array, w: Array, out: Array) -> Step:
    """`x @ w`, with as many rows in one matrix as the layouts of `x` and `out` allow."""
    while x.ndim > 2 and w.shape[-3] == 1 and can_join(x, x.ndim - 3) and can_join(out, x.ndim - 3):
        axis = x.ndim - 3
        x, out, w = join(x, axis), join(out, axis), w.squeeze(axis)
    while x.ndim > 2 and x.shape[0] == w.shape[0] == 1:
        x, w, out = x[0], w[0], out[0]
    return partial(np.matmul, x, w, out)


def _decoded(
    task: Task, w: Operand, matrix: tuple[int, int], x: Array, out: Array
) -> Sequence[Step]:
    """Steps for a matrix of `w` that must be decoded: a chunk of rows, its product, the next."""
    row = x.shape[-1]
    rows = w.array[matrix]
    chunk = max(1, min(len(rows), CHUNK // max(row, 1)))
    room = task.scratch((chunk, row))
    steps: list[Step] = []
    for start in range(0, len(rows), chunk):
        part = rows[start : start + chunk]
        weights = room[: len(part)]
        steps += decode_steps(task, Operand(part, w.dtype), weights)
        steps.append(product(x, weights.T[None, None], out[..., start : start + chunk]))
    return steps


def decode_steps(task: Task, rows: Operand, out: Array) -> Sequence[Step]:
    """Steps that turn stored rows into f32, shared out to the threads."""
    decode = partial(decode_rows, rows.dtype) if rows.dtype.is_block else None
    at_once = rows_per_chunk(out.shape[1])
    lanes: list[list[Step]] = []
    threads = task.tools.workers.count if out.size >= 2 * DECODE_CHUNK else 1
    for first, last in split(len(out), threads):
        lanes.append([])
        for start in range(first, last, at_once):
            part = slice(start, min(start + at_once, last))
            stored, room = rows.array[part], out[part]
            step = partial(decode, stored, room) if decode else load(stored, rows.dtype, room)
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
        self._ids = RowIds(task, "ids", len(self._w.array))
        tokens, used, row = self._out.shape
        slots = np.arange(tokens * used)
        self._token, self._slot = slots // used, slots % used
        self._from = self._slot % self._x.shape[1]
        self._rows = task.scratch((tokens * used, self._x.shape[2]))
        self._products = task.scratch((tokens * used, row))
        self._direct = self._w.dtype is F32 and blas_ready(self._w.array)
        width = self._x.shape[2]
        self._chunk = max(1, min(row, CHUNK // max(width, 1)))
        self._room = None if self._direct else task.scratch((self._chunk, width))

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
        rows, products = self._rows[: len(chosen)], self._products[: len(chosen)]
        rows[...] = self._x[self._token[chosen], self._from[chosen]]
        w = self._w.array[expert]
        if self._room is None:
            np.matmul(rows, w.T, products)
        else:
            for start in range(0, len(w), self._chunk):
                part = w[start : start + self._chunk]
                room = self._room[: len(part)]
                run_all(decode_steps(self._task, Operand(part, self._w.dtype), room))
                np.matmul(rows, room.T, products[:, start : start + self._chunk])
        self._out[self._token[chosen], self._slot[chosen]] = products
