"""Kernels of whole arrays: for ops that no hot path needs, one function of NumPy arrays each."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tensorplug.blocks.rows import decode_rows
from tensorplug.device import Array
from tensorplug.dtypes import F32, DType
from tensorplug_cpu.encode import encode_rows
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.tiles import load, store

Params = Mapping[str, Any]
Function = Callable[..., Array]
"""From the params of a node and the arrays of its sources (None where absent) to its result."""


def whole(*names: str) -> Callable[[Function], Function]:
    """Register a function of arrays in four dimensions, NumPy order, as the kernel of ops.

    Sources come as f32 whatever float or block type they have, integers as they are; the result is
    a new array, or one that broadcasts, so it may be stored over a source.
    """

    def register(function: Function) -> Function:
        def prepare(task: Task) -> list[Callable[[], None]]:
            readers = [None if o is None else reader(o) for o in task.operands]
            params, out = task.node.params, task.out

            def step() -> None:
                arrays = [None if read is None else read() for read in readers]
                write(function(params, *arrays), out)

            return [step]

        kernel(*names)(prepare)
        return function

    return register


def reader(operand: Operand) -> Callable[[], Array]:
    """A function that gives the values of a source as they are at that moment."""
    stored, kind = operand.array, operand.dtype
    if kind is F32 or kind.is_integer:
        return lambda: stored
    if kind.is_block:
        return lambda: _decoded(stored, kind)

    def widened() -> Array:
        wide = np.empty(stored.shape, np.float32)
        load(stored, kind, wide)()
        return wide

    return widened


def _decoded(stored: Array, kind: DType) -> Array:
    rows = np.ascontiguousarray(stored).reshape(-1, stored.shape[-1])
    elements = stored.shape[-1] // kind.size * kind.block
    wide = np.empty((len(rows), elements), np.float32)
    decode_rows(kind, rows, wide)
    return wide.reshape(*stored.shape[:-1], elements)


def write(values: Array, out: Operand) -> None:
    """Store f32 values, or integers, in the type of a result."""
    if out.dtype.is_block:
        rows = np.ascontiguousarray(values, np.float32).reshape(-1, values.shape[-1])
        encoded = np.empty((len(rows), out.array.shape[-1]), np.uint8)
        encode_rows(out.dtype, rows, encoded)
        np.copyto(out.array, encoded.reshape(out.array.shape))
        return
    if out.dtype.is_integer or out.dtype is F32:
        np.copyto(out.array, values, casting="unsafe")
    else:
        narrow = np.broadcast_to(values.astype(np.float32, copy=False), out.array.shape)
        store(narrow, out.dtype, out.array)()
