"""What the rules of all families share: types, layouts, memory of the plan's own."""

import math

import numpy as np

from tensorplug.dtypes import (
    BF16,
    F16,
    F32,
    IQ1_M,
    IQ1_S,
    IQ2_S,
    IQ2_XS,
    IQ2_XXS,
    IQ3_S,
    IQ3_XXS,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
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
    TQ1_0,
    TQ2_0,
    DType,
)
from tensorplug_cpu.memory import aligned
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task
from tensorplug_native.encode import Argument

PLAIN = frozenset({F32, F16, BF16})
PACKABLE = frozenset({Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K})
"""Block types that the kernels read out of panels too."""
_GRIDS = {IQ3_S, IQ3_XXS, IQ2_S, IQ2_XS, IQ2_XXS, IQ1_S, IQ1_M}
BLOCKS = PACKABLE | _GRIDS | {IQ4_XS, TQ1_0, TQ2_0, NVFP4, Q1_0, Q2_0}
"""Block types whose rows the kernels decode."""
READABLE = PLAIN | BLOCKS
"""Types whose rows the kernels decode."""
WRITABLE = PLAIN | {Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, Q2_K, Q4_K, Q5_K, Q6_K}
"""Types into which the kernels turn f32."""

ACTIVATIONS = "activations"
"""What rules find in `Tools.shared`: the option of the stream of that name."""


def dense(operand: Operand | None, *types: DType) -> bool:
    """Whether rows lie without gaps and have one of `types`; absent operands pass."""
    if operand is None:
        return True
    array = operand.array
    return operand.dtype in types and (array.shape[3] == 1 or array.strides[3] == array.itemsize)


def dense_f32(task: Task, *names: str) -> bool:
    """Whether the result and the sources called `names` are f32 in rows without gaps."""
    return dense(task.out, F32) and all(dense(task.get(name), F32) for name in names)


def plain(*operands: Operand | None) -> bool:
    """Whether all that are present are f32, f16 or bf16; in any layout."""
    return all(operand is None or operand.dtype in PLAIN for operand in operands)


def flat(*operands: Operand) -> list[Operand]:
    """As single rows where all have one shape and no gaps: fewer and longer rows are quicker."""
    shapes = {operand.array.shape for operand in operands}
    if len(shapes) > 1 or not all(o.array.flags.c_contiguous for o in operands):
        return list(operands)
    return [Operand(o.array.reshape(1, 1, 1, -1), o.dtype) for o in operands]


def own(shape: tuple[int, ...]) -> Argument:
    """f32 memory of the plan's own."""
    size = 4 * math.prod(shape)
    return Argument(Operand(aligned(size).view(np.float32).reshape(shape), F32), shape[-1])
