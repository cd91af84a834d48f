"""Kernels by family. Importing this module fills the table of kernels."""

from tensorplug_cpu.kernels import (
    attention,
    backward,
    conv,
    copy,
    custom,
    elementwise,
    glu,
    im2col,
    linear_attention,
    matmul,
    norm,
    optimizer,
    pool,
    reduce,
    rope,
    rows,
    softmax,
    ssm,
    unary,
)
from tensorplug_cpu.task import KERNELS, Kernel, Operand, Scratch, Task, Tools, kernel

FAMILIES = (
    attention,
    conv,
    copy,
    custom,
    linear_attention,
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
