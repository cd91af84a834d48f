"""Rows divided by a statistic of themselves, reduced to one element, put in order."""

from collections.abc import Sequence

from tensorplug.dtypes import F16, F32, I32
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task
from tensorplug_native.encode import Draft, optional, result, rule, source
from tensorplug_native.program import Code, Norm, Reduction
from tensorplug_native.rules.common import dense, dense_f32

NORMS = {"rms_norm": Norm.RMS, "norm": Norm.CENTRED, "l2_norm": Norm.LENGTH}


@rule(*NORMS)
def norm(task: Task) -> Sequence[Draft]:
    """Each row divided by its root mean square, its deviation or its length."""
    if not dense_f32(task, "x"):
        return []
    floats, kind = (task.number("eps"),), NORMS[task.node.op]
    return [Draft(Code.NORM, result(task), (source(task, "x"),), floats, (kind,))]


@rule("group_norm")
def group_norm(task: Task) -> Sequence[Draft]:
    """Groups of channels as one row each, where they are of one size and lie without gaps."""
    x, out = task["x"], task.out
    batch, channels, high, wide = out.array.shape
    together = -(-channels // task.integer("groups"))
    if channels % together or not (x.array.flags.c_contiguous and out.array.flags.c_contiguous):
        return []
    shape = (1, 1, batch * channels // together, together * high * wide)
    rows, target = (Operand(o.array.reshape(shape), F32) for o in (x, out))
    floats = (task.number("eps"),)
    sources = (source(task, "x", rows),)
    return [Draft(Code.NORM, result(task, target), sources, floats, (Norm.CENTRED,))]


_REDUCTIONS = {
    "sum_rows": Reduction.SUM,
    "mean": Reduction.MEAN,
    "argmax": Reduction.ARGMAX,
    "cumsum": Reduction.RUNNING_SUM,
}


@rule(*_REDUCTIONS)
def reduce(task: Task) -> Sequence[Draft]:
    """One element for each row, or sums up to each element."""
    kind = _REDUCTIONS[task.node.op]
    whole = kind is not Reduction.RUNNING_SUM or dense(task.out, F32)
    if not (whole and dense(task["x"], F32)):
        return []
    return [Draft(Code.REDUCE, result(task), (source(task, "x"),), integers=(kind,))]


@rule("argsort", "top_k")
def order(task: Task) -> Sequence[Draft]:
    """Indices that sort rows, all or the first of them."""
    if not (dense(task["x"], F32) and dense(task.out, I32)):
        return []
    descending = task.node.op == "top_k" or bool(task.node.params["descending"])
    return [Draft(Code.ORDER, result(task), (source(task, "x"),), integers=(int(descending),))]


@rule("soft_max")
def soft_max(task: Task) -> Sequence[Draft]:
    """Softmax of scaled and masked rows."""
    if not (dense_f32(task, "x", "sinks") and dense(task.get("mask"), F32, F16)):
        return []
    sources = (source(task, "x"), optional(task, "mask"), optional(task, "sinks"))
    floats = (task.number("scale"), task.number("max_bias"))
    return [Draft(Code.SOFT_MAX, result(task), sources, floats)]
