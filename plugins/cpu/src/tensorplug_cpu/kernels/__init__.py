"""Kernels by family. Importing this module fills the table of kernels."""

from tensorplug_cpu.kernels import (
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
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import KERNELS, Kernel, Scratch, Task, Tools, kernel

FAMILIES = (
    attention,
    conv,
    copy,
    image,
    linear_attention,
    sparse,
    window,
    diagonal,
    repetition,
    custom,
    optimizer,
    pool,
    backward,
    elementwise,
    glu,
    im2col,
    matmul,
    norm,
    reduce,
    rope,
    rows,
    softmax,
    ssm,
    unary,
)

__all__ = ["FAMILIES", "KERNELS", "Kernel", "Operand", "Scratch", "Task", "Tools", "kernel"]
