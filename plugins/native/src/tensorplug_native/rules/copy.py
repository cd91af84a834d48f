"""Copies: to other memory, layout and type; joined, repeated, padded; rows taken and written."""

from collections.abc import Sequence
from typing import cast

from tensorplug.dtypes import F32, I32, I64
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task
from tensorplug_native.encode import Draft, result, rule, source
from tensorplug_native.program import Code, Map
from tensorplug_native.rules.common import READABLE, WRITABLE, dense, dense_f32


def _shape(operand: Operand) -> tuple[int, ...]:
    """In elements, for block types too."""
    *outer, row = operand.array.shape
    dtype = operand.dtype
    return (*outer, row // dtype.size * dtype.block if dtype.is_block else row)


@rule("dup", "cont", "cpy")
def copy(task: Task) -> Sequence[Draft]:
    """Elements in order; shapes may differ where one side lies without gaps."""
    x, out = task["x"], task.out
    if x.dtype is not out.dtype and not (x.dtype in READABLE and out.dtype in WRITABLE):
        return []
    if _shape(x) != _shape(out):
        if out.array.flags.c_contiguous and not out.dtype.is_block:
            out = Operand(out.array.reshape(_shape(x)), out.dtype)
        elif x.array.flags.c_contiguous and not x.dtype.is_block:
            x = Operand(x.array.reshape(_shape(out)), x.dtype)
        else:
            return []
    return [Draft(Code.COPY, result(task, out), (source(task, "x", x),))]


@rule("concat")
def concat(task: Task) -> Sequence[Draft]:
    """One tensor after the other: two copies."""
    a, b, out = task["a"], task["b"], task.out
    if a.dtype.is_block or not a.dtype is b.dtype is out.dtype:
        return []
    axis = 3 - task.integer("dim")
    edge, drafts = a.array.shape[axis], []
    for name, part in (("a", slice(edge)), ("b", slice(edge, None))):
        into = Operand(out.array[(*(slice(None),) * axis, part)], out.dtype)
        drafts.append(Draft(Code.COPY, result(task, into), (source(task, name),)))
    return drafts


@rule("repeat")
def repeat(task: Task) -> Sequence[Draft]:
    """Copies side by side."""
    if task.out.dtype.is_block or task["x"].dtype is not task.out.dtype:
        return []
    return [Draft(Code.REPEAT, result(task), (source(task, "x"),))]


@rule("pad")
def pad(task: Task) -> Sequence[Draft]:
    """A tensor between zeros: zeros everywhere, then a copy."""
    params, x = task.node.params, task["x"]
    if params["circular"] or not dense_f32(task, "x"):
        return []
    pads = cast("tuple[int, ...]", params["pads"])
    before = [pads[2 * dim] for dim in (3, 2, 1, 0)]
    inside = tuple(slice(first, first + n) for first, n in zip(before, x.array.shape, strict=True))
    part = Operand(task.out.array[inside], F32)
    return [
        Draft(Code.MAP, result(task), (), (0.0,), (Map.FILL,)),
        Draft(Code.COPY, result(task, part), (source(task, "x"),)),
    ]


@rule("get_rows")
def get_rows(task: Task) -> Sequence[Draft]:
    """Rows that ids name, decoded; those of i32 as they are."""
    table, out = task["table"], task.out
    decoded = dense(table, *READABLE) and dense(out, F32)
    if not (decoded or (dense(table, I32) and dense(out, I32))):
        return []
    sources = (source(task, "table"), source(task, "ids"))
    return [Draft(Code.GET_ROWS, result(task), sources)]


@rule("set_rows")
def set_rows(task: Task) -> Sequence[Draft]:
    """Rows written where ids say, encoded to the type of the table."""
    ids = task["ids"].dtype in (I32, I64)
    if not (dense(task.out, *WRITABLE) and dense(task["rows"], F32) and ids):
        return []
    sources = (source(task, "rows"), source(task, "ids"))
    return [Draft(Code.SET_ROWS, result(task), sources)]
