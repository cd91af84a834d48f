"""Tensor cores: what they take."""

from tensorplug.dtypes import BF16, F16, DType

CORES = "tensorplug_cuda:kernels/cores.cu"
"""A part of kernels: how a warp loads and multiplies matrices."""
ITEMS = 128
"""Of a group of four warps."""


def fit(*stored: DType) -> bool:
    """Whether they take what is stored so, as it is or rounded to f16.

    f32 may be beyond the range of f16, and is finer. So is bf16, which stays what it is where it is
    alone, since the two do not mix.
    """
    halves = all(dtype is F16 or dtype.is_block for dtype in stored)
    return halves or all(dtype is BF16 for dtype in stored)


def kind(dtype: DType) -> dict[str, int]:
    """The constants of a text that multiplies what is stored so."""
    return {"BRAIN": 1} if dtype is BF16 else {}
