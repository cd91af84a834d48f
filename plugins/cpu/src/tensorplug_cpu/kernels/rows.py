"""Rows taken from and written to a table of rows."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from tensorplug.blocks.rows import decode_rows, rows_per_chunk
from tensorplug.device import Array
from tensorplug.dtypes import DType
from tensorplug_cpu.encode import encode_rows
from tensorplug_cpu.kernels.ids import RowIds
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step
from tensorplug_cpu.tiles import load
from tensorplug_cpu.whole import reader


@kernel("get_rows")
def get_rows(task: Task) -> Sequence[Step]:
    """Rows that ids name, decoded."""
    table, out = task["table"], task.out.array
    ids = RowIds(task)
    chosen = ids.values.reshape(task["ids"].array.shape)[0]
    steps: list[Step] = [ids]
    clear = partial(ids.clear, out.reshape(-1, out.shape[3]))
    if not table.array.size:
        return [ids, clear]
    if table.array.dtype == out.dtype:
        indices = np.ndindex(out.shape[:2])
        return [ids, *(_take(table.array[i], chosen[i], out[i]) for i in indices), clear]
    for part, rows in _chunks(task, table, task.node.ne[0], out.shape[2]):
        for index in np.ndindex(out.shape[:2]):
            steps.append(_take(table.array[index], chosen[index][part], rows))
            steps.append(_widen(rows, table.dtype, out[index][part]))
    return [*steps, clear]


def _chunks(task: Task, table: Operand, row: int, count: int) -> Iterator[tuple[slice, Array]]:
    """Ranges of `count` rows that fit the cache, each with scratch for its stored rows."""
    at_once = min(count, rows_per_chunk(row))
    stored = task.scratch((at_once, table.array.shape[3]), table.array.dtype)
    for start in range(0, count, at_once):
        part = slice(start, min(start + at_once, count))
        yield part, stored[: part.stop - start]


def _take(table: Array, ids: Array, out: Array) -> Step:
    if table.flags.c_contiguous:
        # The ids are checked; any mode but "raise" writes straight into `out`. Rows without an id
        # are cleared later.
        return partial(table.take, ids, axis=0, out=out, mode="clip")

    def run() -> None:  # take() would copy the whole table first
        out[...] = table[ids]

    return run


def _widen(rows: Array, kind: DType, out: Array) -> Step:
    if kind.is_block:
        return partial(decode_rows, kind, rows, out)
    return load(rows, kind, out)


@kernel("set_rows")
def set_rows(task: Task) -> Sequence[Step]:
    """Rows written where ids say, encoded to the type of the table."""
    table, rows = task.out, task["rows"].array
    ids = RowIds(task)
    if not ids.values.size or not rows.size:
        return []
    chosen, named = (a.reshape(task["ids"].array.shape)[0] for a in (ids.values, ids.named))
    repeats = [(a % chosen.shape[0], b % chosen.shape[1]) for a, b in np.ndindex(rows.shape[:2])]

    def put(target: Array, at: Array, is_named: Array, values: Array) -> None:
        if ids.all_named:
            target[at] = values
        else:
            target[at[is_named]] = values[is_named]

    indices = [
        (index, chosen[repeated], named[repeated])
        for index, repeated in zip(np.ndindex(rows.shape[:2]), repeats, strict=True)
    ]
    if table.dtype.numpy is not None:
        return [ids, *(partial(put, table.array[i], at, n, rows[i]) for i, at, n in indices)]
    steps: list[Step] = [ids]
    packed = task.scratch((min(rows.shape[2], rows_per_chunk(rows.shape[3])), rows.shape[3]))
    for part, room in _chunks(task, table, rows.shape[3], rows.shape[2]):
        values = packed[: len(room)]
        for index, at, is_named in indices:
            steps += [
                partial(np.copyto, values, rows[index][part]),
                partial(encode_rows, table.dtype, values, room),
                partial(put, table.array[index], at[part], is_named[part], room),
            ]
    return steps


@kernel("get_rows_back")
def get_rows_back(task: Task) -> Sequence[Step]:
    """Rows of the gradient added where they were taken from."""
    read, out = reader(task["grad"]), task.out.array[0, 0]
    ids = RowIds(task)

    def add() -> None:
        out[...] = 0
        rows = read()[0, 0]
        if ids.all_named:
            np.add.at(out, ids.values, rows)
        else:
            np.add.at(out, ids.values[ids.named], rows[ids.named])

    return [ids, add]
