"""Tensor cores: what they take."""

from tensorplug.dtypes import BF16, F16, DType

QUADS = "tensorplug_cuda:kernels/quads.cu"
"""A part of kernels: how 16 bytes are loaded at once."""
CORES = (QUADS, "tensorplug_cuda:kernels/cores.cu")
"""Parts of kernels: how a warp loads and multiplies matrices."""
ITEMS = 128
"""Of a group of four warps."""


def fit(*stored: DType) -> bool:
    """Whether they take what is stored so, as it is or rounded to f16.

    f32 may be beyond the range of f16, and is finer. bf16 may be beyond it too, so it stays what it
    is, and does not mix with others.
    """
    halves = all(dtype is F16 or dtype.is_block for dtype in stored)
    return halves or all(dtype is BF16 for dtype in stored)


def factor_type(weights: DType) -> DType:
    """The type in which weights and columns are multiplied.

    Columns may be beyond the range of f16, so it is bf16 unless weights are f16 themselves. That is
    finer than the bytes that few columns are rounded to for weights of blocks.
    """
    return F16 if weights is F16 else BF16


def defines(dtype: DType) -> dict[str, int]:
    """The constants of a text that multiplies in bf16, else in f16."""
    return {"BRAIN": 1} if dtype is BF16 else {}
