"""Products with weights of any readable type, and attention."""

from collections.abc import Sequence

from tensorplug.device import Layout, Rounding, Tensor
from tensorplug.dtypes import BF16, F16, F32, I32
from tensorplug_cpu.support import memory_of
from tensorplug_cpu.task import Task
from tensorplug_native.encode import Draft, optional, result, rule, source
from tensorplug_native.program import FEW_TILED, FEW_TILED_PANELS, Code
from tensorplug_native.rules.common import (
    ACTIVATIONS,
    BLOCKS,
    PLAIN,
    READABLE,
    dense,
    dense_f32,
)

INT8_LEVELS = frozenset({"avx2", "avx512", "avx512_bf16", "amx", "neon_dot"})
"""Those with products of bytes; `amx` has them for few rows of x, and of bf16 for more."""
HALVES_LEVELS = frozenset({"avx2", "avx512", "avx512_bf16", "amx"})
"""Those that round x to f16 for weights in f16 and bf16; the last two to bf16 for several rows."""


def rounding(node: Tensor, level: str, activations: str) -> Rounding:
    """What a product rounds at a level, with the option `activations` of a stream.

    Weights without a place are taken for rows. Where they get one in panels, both operands may be
    rounded to bf16 instead of x to bytes, by which a product moves no more: by a 255th at most.
    """
    may_round = node.op in ("mul_mat", "mul_mat_id") and node.params.get("precision") != "f32"
    if not may_round or activations != "int8":
        return Rounding.NONE
    kind = node.sources[0].dtype
    if kind in BLOCKS and level in INT8_LEVELS:
        memory = memory_of(node.sources[0], {})
        in_panels = memory is not None and memory.layout is Layout.PACKED
        few = FEW_TILED_PANELS if in_panels else FEW_TILED
        in_tiles = level == "amx" and node.op == "mul_mat" and node.sources[1].ne[1] > few
        return Rounding.HALVES if in_tiles else Rounding.BYTES
    return Rounding.HALVES if kind in (F16, BF16) and level in HALVES_LEVELS else Rounding.NONE


@rule("mul_mat")
def mul_mat(task: Task) -> Sequence[Draft]:
    """Rows of weights of any readable type; sums in f32."""
    if not (dense(task["w"], *READABLE) and dense(task.out, F32)):
        return []
    may_round = task.node.params["precision"] == "default"
    rounds = may_round and task.tools.shared.get(ACTIVATIONS) == "int8"
    sources = (source(task, "w"), source(task, "x"))
    return [Draft(Code.MUL_MAT, result(task), sources, integers=(int(rounds),))]


@rule("mul_mat_id")
def mul_mat_id(task: Task) -> Sequence[Draft]:
    """Each row against the matrix that its id names."""
    fits = dense(task["w"], *READABLE) and dense(task.out, F32) and task["x"].dtype in PLAIN
    if not (fits and task["ids"].dtype is I32):
        return []
    rounds = task.tools.shared.get(ACTIVATIONS) == "int8"
    sources = tuple(source(task, name) for name in ("w", "x", "ids"))
    return [Draft(Code.MUL_MAT_ID, result(task), sources, (), (int(rounds),))]


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
