"""Kernels by family. Importing this module fills the table of kernels."""

from tensorplug_cpu.kernels import (
    attention,
    copy,
    elementwise,
    glu,
    matmul,
    norm,
    reduce,
    rope,
    rows,
    softmax,
    unary,
)
from tensorplug_cpu.task import KERNELS, Kernel, Operand, Scratch, Task, Tools, kernel

FAMILIES = (
    attention,
    copy,
    elementwise,
    glu,
    matmul,
    norm,
    reduce,
    rope,
    rows,
    softmax,
    unary,
)

__all__ = ["FAMILIES", "KERNELS", "Kernel", "Operand", "Scratch", "Task", "Tools", "kernel"]
