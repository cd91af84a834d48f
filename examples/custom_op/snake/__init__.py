"""`acme.snake`: x + sin(a x)^2 / a, an op with a kernel for GPUs and a fallback in NumPy."""

from contextlib import suppress
from typing import Any

import numpy as np

import tensorplug as tp
from tensorplug.ops.rules import always, same_shape_as
from tensorplug.ops.table import Op, Param, Source, apply, register_op


def _reference(params: Any, x: Any) -> Any:
    """Computes the op on cpu, and is what the conformance kit compares kernels with."""
    return x + np.sin(params["a"] * x) ** 2 / params["a"]


SNAKE = register_op(
    Op(
        "acme.snake",
        sources=(Source("x", frozenset({tp.F32})),),
        params=(Param("a", float, default=1.0),),
        shape=same_shape_as("x"),
        dtype=always(tp.F32),
        reference=_reference,
        formula="y = x + sin(a * x)**2 / a",
    )
)


def snake(x: tp.Tensor, *, a: float = 1.0, name: str = "") -> tp.Tensor:
    """The activation of each element of `x`."""
    return apply(SNAKE, x, a=a, name=name)


with suppress(ImportError):  # the kernel needs tensorplug-simt, which opencl, cuda and metal bring
    from snake import kernel as kernel
