"""Kernels of fake devices for a few ops, in NumPy: one function per op, in one table.

A kernel takes the node, the array of its result and the arrays of its sources, all with four
dimensions in NumPy order. For writes (`cpy`, `set_rows`) the result is the memory that is written.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tensorplug.device import Array, Tensor
from tensorplug.ops.ids import NO_ROW, row_ids

Kernel = Callable[..., None]


def _tiled(small: Array, shape: tuple[int, ...]) -> Array:
    return np.tile(
        small, [want // n if n else 0 for n, want in zip(small.shape, shape, strict=True)]
    )


def _number(node: Tensor, name: str) -> np.float32:
    value: Any = node.params[name]
    return np.float32(value)


def _binary(function: Callable[[Array, Array], Any]) -> Kernel:
    def kernel(_node: Tensor, out: Array, a: Array, b: Array) -> None:
        out[...] = function(a, _tiled(b, a.shape))

    return kernel


def _scale(node: Tensor, out: Array, x: Array) -> None:
    out[...] = _number(node, "scale") * x + _number(node, "bias")


def _repeat(_node: Tensor, out: Array, x: Array) -> None:
    out[...] = _tiled(x, out.shape)


def _relu(_node: Tensor, out: Array, x: Array) -> None:
    np.maximum(x, 0, out=out)


def _soft_max(node: Tensor, out: Array, x: Array) -> None:
    scaled = _number(node, "scale") * x
    powers = np.exp(scaled - scaled.max(-1, keepdims=True))
    out[...] = powers / powers.sum(-1, keepdims=True)


def _sum_rows(_node: Tensor, out: Array, x: Array) -> None:
    out[...] = x.sum(-1, keepdims=True)


def _mul_mat(_node: Tensor, out: Array, w: Array, x: Array) -> None:
    for axis in (0, 1):
        w = np.repeat(w, x.shape[axis] // w.shape[axis], axis)
    np.matmul(x, w.swapaxes(2, 3), out=out)


def _in_order(_node: Tensor, out: Array, x: Array, *_target: Array) -> None:
    # The source may lie in the memory that is written, so it is copied first.
    out[...] = np.array(x).reshape(out.shape)


def _get_rows(node: Tensor, out: Array, table: Array, ids: Array) -> None:
    rows = _checked(node, ids)[0, ..., np.newaxis]
    out[...] = np.where(rows == NO_ROW, 0, np.take_along_axis(table, rows, axis=2))


def _set_rows(node: Tensor, out: Array, _table: Array, rows: Array, ids: Array) -> None:
    spread = _tiled(_checked(node, ids)[0], rows.shape[:3])
    for at in np.argwhere(spread != NO_ROW):
        b, a, row = at
        out[b, a, spread[b, a, row]] = rows[b, a, row]


def _checked(node: Tensor, ids: Array) -> Array:
    for held in row_ids(node):
        held.check(ids.reshape(held.ids.shape))
    return ids


KERNELS: Mapping[str, Kernel] = {
    "add": _binary(np.add),
    "sub": _binary(np.subtract),
    "mul": _binary(np.multiply),
    "div": _binary(np.divide),
    "scale": _scale,
    "relu": _relu,
    "soft_max": _soft_max,
    "sum_rows": _sum_rows,
    "mul_mat": _mul_mat,
    "cpy": _in_order,
    "cont": _in_order,
    "dup": _in_order,
    "repeat": _repeat,
    "get_rows": _get_rows,
    "set_rows": _set_rows,
}
