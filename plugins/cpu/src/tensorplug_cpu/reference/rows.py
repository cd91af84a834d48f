"""Rows taken from and written to a table of rows."""

import numpy as np

from tensorplug.device import Array, GraphError, Tensor
from tensorplug.ops.ids import NO_ROW
from tensorplug_cpu.reference.memory import Memory, encode
from tensorplug_cpu.reference.table import Params, moves, values


def checked_ids(where: object, ids: Array, rows: int) -> Array:
    """Return `ids`. Raises GraphError where one is neither one of `rows` rows nor NO_ROW."""
    outside = ids[(ids < NO_ROW) | (ids >= rows)]
    if outside.size:
        raise GraphError(
            f"reference: {where}: id {outside[0]} names no row; rows are 0 to {rows - 1}, and "
            f"{NO_ROW} stands for none"
        )
    return ids


def rows_of(table: Array, ids: Array) -> Array:
    """The entries of `table` along axis 0 that `ids` name; zeros for NO_ROW."""
    y = np.zeros((*ids.shape, *table.shape[1:]), table.dtype)
    named = ids != NO_ROW
    y[named] = table[ids[named]]
    return y


@moves("get_rows")
def get_rows(node: Tensor, memory: Memory) -> None:
    table, ids = (memory.value(t) for t in node.sources)
    checked_ids(node, ids, table.shape[2])
    y = np.empty(node.ne[::-1], table.dtype)
    for b in range(table.shape[0]):
        for a in range(table.shape[1]):
            y[b, a] = rows_of(table[b, a], ids[0, b, a])
    memory.store(node, y)


@moves("set_rows")
def set_rows(node: Tensor, memory: Memory) -> None:
    table, rows, ids = node.sources
    named = checked_ids(node, memory.value(ids)[0], table.ne[1])
    # Rows that are not named keep their bytes: decoding and encoding them again might change them.
    stored, slots = encode(node.dtype, memory.value(rows)), memory.window(node)
    for b in range(rows.ne[3]):
        for a in range(rows.ne[2]):
            to = named[b % ids.ne[2], a % ids.ne[1]]
            for row, at in enumerate(to):
                if at != NO_ROW:
                    slots[b, a, at] = stored[b, a, row]


@values("get_rows_back")
def get_rows_back(p: Params, grad: Array, ids: Array) -> Array:
    y = np.zeros(p["ne"][::-1])
    rows = checked_ids("get_rows_back", ids[0, 0, 0], y.shape[2])
    for row, to in zip(grad[0, 0], rows, strict=True):
        if to != NO_ROW:
            y[0, 0, to] += row
    return y
