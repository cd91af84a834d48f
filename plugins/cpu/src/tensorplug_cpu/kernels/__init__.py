"""Kernels by family. Importing this module fills the table of kernels."""

from tensorplug_cpu.kernels import (
    attention,
    backward,
    copy,
    custom,
    elementwise,
    glu,
    matmul,
    norm,
    optimizer,
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
    copy,
    custom,
    optimizer,
    backward,
    elementwise,
    glu,
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
