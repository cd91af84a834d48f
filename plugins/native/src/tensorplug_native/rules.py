"""Which nodes the kernels compute, and what their records hold, by family."""

import math
from collections.abc import Sequence

import numpy as np

from tensorplug.dtypes import (
    BF16,
    F16,
    F32,
    I32,
    I64,
    IQ4_NL,
    MXFP4,
    Q2_K,
    Q3_K,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    DType,
)
from tensorplug.tensor import Array
from tensorplug_cpu.memory import aligned
from tensorplug_cpu.task import Operand, Task
from tensorplug_native.encode import RULES, Draft, Slot, optional, result, rule, source
from tensorplug_native.program import Activation, Code

__all__ = ["ACTIVATIONS", "READABLE", "RULES"]

PLAIN = frozenset({F32, F16, BF16})
READABLE = PLAIN | {
    *(Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4),
    *(Q2_K, Q3_K, Q4_K, Q5_K, Q6_K),
}
"""Types whose rows the kernels decode."""

ACTIVATIONS = "activations"
"""What rules find in `Tools.shared`: the option of the stream of that name."""

_ARITHMETIC = {"add": Code.ADD, "sub": Code.SUB, "mul": Code.MUL, "div": Code.DIV}
_ACTIVATIONS = {
    "reglu": Activation.RELU,
    "geglu": Activation.GELU,
    "swiglu": Activation.SILU,
    "geglu_quick": Activation.GELU_QUICK,
}


def dense(operand: Operand | None, *types: DType) -> bool:
    """Whether rows lie without gaps and have one of `types`; absent operands pass."""
    if operand is None:
        return True
    array = operand.array
    return operand.dtype in types and (array.shape[3] == 1 or array.strides[3] == array.itemsize)


def dense_f32(task: Task, *names: str) -> bool:
    """Whether the result and the sources called `names` are f32 in rows without gaps."""
    return dense(task.out, F32) and all(dense(task.get(name), F32) for name in names)


# --- element by element --------------------------------------------------------------------------


@rule(*_ARITHMETIC)
def arithmetic(task: Task) -> Sequence[Draft]:
    """Two f32 tensors; the second repeats to the shape of the first."""
    if not dense_f32(task, "a", "b"):
        return []
    sources = (source(task, "a"), source(task, "b"))
    return [Draft(_ARITHMETIC[task.node.op], result(task), sources)]


@rule("scale")
def scale(task: Task) -> Sequence[Draft]:
    """`scale * x + bias`."""
    if not dense_f32(task, "x"):
        return []
    floats = (task.number("scale"), task.number("bias"))
    return [Draft(Code.SCALE, result(task), (source(task, "x"),), floats)]


@rule(*_ACTIVATIONS)
def glu(task: Task) -> Sequence[Draft]:
    """Two sources, or the halves of one."""
    if not dense_f32(task, "x", "gate"):
        return []
    if task.get("gate") is not None:
        sides = (source(task, "x"), source(task, "gate"))
    else:
        x, half = task["x"], task["x"].array.shape[3] // 2
        parts = [Operand(x.array[..., :half], F32), Operand(x.array[..., half:], F32)]
        if task.node.params["swapped"]:
            parts.reverse()
        sides = (source(task, "x", parts[0]), source(task, "x", parts[1]))
    return [Draft(Code.GLU, result(task), sides, integers=(_ACTIVATIONS[task.node.op],))]


# --- rows ----------------------------------------------------------------------------------------


@rule("rms_norm")
def rms_norm(task: Task) -> Sequence[Draft]:
    """Each row divided by its root mean square."""
    if not dense_f32(task, "x"):
        return []
    return [Draft(Code.RMS_NORM, result(task), (source(task, "x"),), (task.number("eps"),))]


@rule("soft_max")
def soft_max(task: Task) -> Sequence[Draft]:
    """Softmax of scaled and masked rows."""
    if not (dense_f32(task, "x", "sinks") and dense(task.get("mask"), F32, F16)):
        return []
    sources = (source(task, "x"), optional(task, "mask"), optional(task, "sinks"))
    floats = (task.number("scale"), task.number("max_bias"))
    return [Draft(Code.SOFT_MAX, result(task), sources, floats)]


@rule("get_rows")
def get_rows(task: Task) -> Sequence[Draft]:
    """Rows that ids name, decoded."""
    if not (dense(task["table"], *READABLE) and dense(task.out, F32)):
        return []
    return [Draft(Code.GET_ROWS, result(task), (source(task, "table"), source(task, "ids")))]


@rule("set_rows")
def set_rows(task: Task) -> Sequence[Draft]:
    """Rows written where ids say."""
    ids = task["ids"].dtype in (I32, I64)
    if not (dense(task.out, *PLAIN) and dense(task["rows"], F32) and ids):
        return []
    return [Draft(Code.SET_ROWS, result(task), (source(task, "rows"), source(task, "ids")))]


@rule("dup", "cont", "cpy")
def copy(task: Task) -> Sequence[Draft]:
    """Numbers in order; shapes may differ where one side lies without gaps."""
    x, out = task["x"], task.out
    if not {x.dtype, out.dtype} <= PLAIN:
        return []
    if x.array.shape != out.array.shape:
        if out.array.flags.c_contiguous:
            out = Operand(out.array.reshape(x.array.shape), out.dtype)
        elif x.array.flags.c_contiguous:
            x = Operand(x.array.reshape(out.array.shape), x.dtype)
        else:
            return []
    return [Draft(Code.COPY, result(task, out), (source(task, "x", x),))]


# --- rotary position embedding -------------------------------------------------------------------


@rule("rope")
def rope(task: Task) -> Sequence[Draft]:
    """Pairs turn by a table that nodes with the same positions and parameters share."""
    params = task.node.params
    if params["mode"] not in ("normal", "neox") or not dense_f32(task, "x", "factors"):
        return []
    factors = task.source("factors") if task.get("factors") is not None else None
    key = (
        "native rope",
        tuple(params.items()),
        task.tools.version(task.source("positions")),
        None if factors is None else task.tools.version(factors),
    )
    table, drafts = task.tools.shared.get(key), []
    if table is None:
        table, draft = _rope_table(task)
        task.tools.shared[key] = table
        drafts.append(draft)
    halves = int(params["mode"] == "neox")
    sources = (source(task, "x"), table)
    return [*drafts, Draft(Code.ROPE, result(task), sources, integers=(halves,))]


def _rope_table(task: Task) -> tuple[Slot, Draft]:
    rates, size = _rope_rates(task)
    table = _own((1, task.node.ne[2], len(rates), 2))
    sources = (source(task, "positions"), _slot_of(rates), optional(task, "factors"))
    return table, Draft(Code.ROPE_TABLE, table, sources, (size,))


def _rope_rates(task: Task) -> tuple[Array, float]:
    """Angles for each position, f64 [pairs], and the length of a turned pair (Peng et al. 2023)."""
    dims, base = task.integer("dims"), task.number("base")
    scale, extension, size = (task.number(n) for n in ("scale", "ext_factor", "attn_factor"))
    pairs = np.arange(dims // 2)
    rates = base ** (-2.0 / dims * pairs)
    if not extension:
        return rates * scale, size
    context = task.integer("original_context")

    def turns(n: float) -> float:
        return dims * math.log(context / (n * 2 * math.pi)) / (2 * math.log(base))

    low = max(0, math.floor(turns(task.number("beta_fast"))))
    high = min(dims - 1, math.ceil(turns(task.number("beta_slow"))))
    mix = (1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1)) * extension
    return rates * (scale * (1 - mix) + mix), size * (1 + 0.1 * math.log(1 / scale))


def _own(shape: tuple[int, ...]) -> Slot:
    """f32 memory of the plan's own."""
    size = 4 * math.prod(shape)
    return Slot(Operand(aligned(size).view(np.float32).reshape(shape), F32), shape[-1])


def _slot_of(numbers: Array) -> Slot:
    """f64 numbers that the plan keeps."""
    return Slot(Operand(numbers.reshape(1, 1, 1, -1), I64), len(numbers))


# --- products ------------------------------------------------------------------------------------


@rule("mul_mat")
def mul_mat(task: Task) -> Sequence[Draft]:
    """Rows of weights of any readable type; sums in f32."""
    if not (dense(task["w"], *READABLE) and dense(task.out, F32)):
        return []
    may_round = task.node.params["precision"] == "default"
    rounds = may_round and task.tools.shared.get(ACTIVATIONS) == "int8"
    sources = (source(task, "w"), source(task, "x"))
    return [Draft(Code.MUL_MAT, result(task), sources, integers=(int(rounds),))]


@rule("flash_attn_ext")
def flash_attn_ext(task: Task) -> Sequence[Draft]:
    """Keys and values of any readable type."""
    fits = dense_f32(task, "q", "sinks") and dense(task.get("mask"), F32, F16)
    if not (fits and dense(task["k"], *READABLE) and dense(task["v"], *READABLE)):
        return []
    sources = (
        *(source(task, name) for name in "qkv"),
        optional(task, "mask"),
        optional(task, "sinks"),
    )
    floats = tuple(task.number(name) for name in ("scale", "max_bias", "softcap"))
    return [Draft(Code.ATTENTION, result(task), sources, floats)]
