"""What every op means, in NumPy and float64: the plain text that fast kernels are compared with.

`compute` evaluates a whole graph in execution order. Its scheme is small. Every tensor that is not
a view has memory of its own, laid out by its byte strides, and views and writes are windows on that
memory, so permuted, sliced and overlapping views, `set_rows`, `cpy` and ops in place act as on a
device. A slot holds what a device would hold (f16 and bf16 rounded to nearest even, integers cut
toward zero, blocks encoded), with one exception: a slot of f32 holds a float64, so that nothing is
rounded between ops. An f32 result outside the range of f32 becomes infinite, as it would there.

Results are float64 for floating-point and block types, int64 for integers. Nothing here is fast,
and nothing here is shared with the kernels.
"""

from tensorplug_cpu.reference import (
    attention,
    backward,
    conv,
    copy,
    custom,
    diagonal,
    elementwise,
    glu,
    im2col,
    image,
    linear_attention,
    matmul,
    norm,
    optimizer,
    pool,
    reduce,
    repetition,
    rope,
    rows,
    softmax,
    sparse,
    ssm,
    unary,
    window,
)
from tensorplug_cpu.reference.memory import Memory, decode, encode
from tensorplug_cpu.reference.run import compute, execute
from tensorplug_cpu.reference.table import REFERENCE

FAMILIES = (
    elementwise,
    unary,
    glu,
    reduce,
    norm,
    softmax,
    rope,
    matmul,
    rows,
    copy,
    image,
    window,
    diagonal,
    repetition,
    custom,
    optimizer,
    pool,
    backward,
    attention,
    ssm,
    conv,
    im2col,
    linear_attention,
    sparse,
)
"""The modules whose functions fill `REFERENCE`, named like those of `tensorplug.ops`."""

__all__ = ["FAMILIES", "REFERENCE", "Memory", "compute", "decode", "encode", "execute"]
