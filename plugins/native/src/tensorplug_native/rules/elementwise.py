"""Functions of one element, and of an element of each of two tensors."""

from collections.abc import Sequence

import numpy as np

from tensorplug.dtypes import F32, I32
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task
from tensorplug_native.encode import Draft, result, rule, source
from tensorplug_native.program import Code, Join, Map
from tensorplug_native.rules.common import dense, dense_f32, flat, plain

_PARAMS: dict[str, tuple[str, ...]] = {
    "xielu": ("alpha_n", "alpha_p", "beta", "eps"),
    "scale": ("scale", "bias"),
    "clamp": ("min", "max"),
    "leaky_relu": ("slope",),
    "fill": ("value",),
    "swiglu_oai": ("alpha", "limit"),
}
"""The parameters of functions that have any, in the order in which they are given."""


def _params(task: Task) -> tuple[float, ...]:
    return tuple(task.number(name) for name in _PARAMS.get(task.node.op, ()))


@rule(*(function.name.lower() for function in Map))
def mapped(task: Task) -> Sequence[Draft]:
    """A function of each element."""
    if not plain(task["x"], task.out):
        return []
    x, out = flat(task["x"], task.out)
    # What fills a tensor need not read it.
    sources = () if task.node.op == "fill" else (source(task, "x", x),)
    function = Map[task.node.op.upper()]
    return [Draft(Code.MAP, result(task, out), sources, _params(task), (function,))]


@rule("add", "sub", "mul", "div", "add1")
def arithmetic(task: Task) -> Sequence[Draft]:
    """Two tensors; the second repeats to the shape of the first."""
    if not plain(task["a"], task["b"], task.out):
        return []
    a, b, out = flat(task["a"], task["b"], task.out)
    sources = (source(task, "a", a), source(task, "b", b))
    function = Join[task.node.op.rstrip("1").upper()]
    return [Draft(Code.JOIN, result(task, out), sources, integers=(function,))]


UNITS = ("reglu", "geglu", "swiglu", "geglu_erf", "geglu_quick", "swiglu_oai")


@rule(*UNITS)
def gated_unit(task: Task) -> Sequence[Draft]:
    """Two sources, or the halves of one."""
    if not plain(task["x"], task.get("gate"), task.out):
        return []
    x, gate = task["x"], task.get("gate")
    names = ("x", "gate")
    if gate is None:
        half, names = x.array.shape[3] // 2, ("x", "x")
        parts = [Operand(x.array[..., :half], x.dtype), Operand(x.array[..., half:], x.dtype)]
        if task.node.params["swapped"]:
            parts.reverse()
        x, gate = parts
    x, gate, out = flat(x, gate, task.out)
    sides = tuple(source(task, n, o) for n, o in zip(names, (x, gate), strict=True))
    function = Join[task.node.op.upper()]
    return [Draft(Code.JOIN, result(task, out), sides, _params(task), (function,))]


@rule("add_id")
def add_rows(task: Task) -> Sequence[Draft]:
    """Rows plus the rows that ids name."""
    if not (dense_f32(task, "a", "b") and task["ids"].dtype is I32):
        return []
    sources = tuple(source(task, name) for name in ("a", "b", "ids"))
    return [Draft(Code.ADD_ROWS, result(task), sources)]


_HIDDEN = {"diag_mask_inf": -np.inf, "diag_mask_zero": 0.0}


@rule(*_HIDDEN)
def masked(task: Task) -> Sequence[Draft]:
    """What lies right of a diagonal is hidden."""
    if not plain(task["x"], task.out):
        return []
    floats, integers = (_HIDDEN[task.node.op],), (task.integer("n_past"),)
    return [Draft(Code.MASK, result(task), (source(task, "x"),), floats, integers)]


@rule("acc")
def accumulate(task: Task) -> Sequence[Draft]:
    """A copy of one tensor with another added to a window of it."""
    a, part, out = task["a"], task["part"], task.out
    if not (dense(a, F32) and dense(part, F32) and out.array.flags.c_contiguous):
        return []
    strides = (*(task.integer(n) for n in ("nb3", "nb2", "nb1")), 4)
    offset = task.integer("offset")
    whole = out.array.reshape(-1).view(np.uint8)
    window = np.ndarray(part.array.shape, np.float32, whole, offset, strides)
    target = result(task, Operand(window, F32))
    drafts = [Draft(Code.JOIN, target, (target, source(task, "part")), integers=(Join.ADD,))]
    if a.array.ctypes.data != out.array.ctypes.data or a.array.strides != out.array.strides:
        drafts.insert(0, Draft(Code.COPY, result(task), (source(task, "a"),)))
    return drafts
