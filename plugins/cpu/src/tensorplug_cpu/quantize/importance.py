"""Importance of the columns of weights, from a file that `llama-imatrix` wrote (GGUF)."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tensorplug.device import Array
from tensorplug.dtypes import F32
from tensorplug.errors import FormatError
from tensorplug.gguf import GGUFFile, open_gguf

SUMS, COUNTS = ".in_sum2", ".counts"


def read_importance(path: Path) -> Mapping[str, Array]:
    """Mean squares of the inputs by name of the weight, f32 [matrices, columns].

    A matrix that saw no input, as of an expert that was never chosen, gets ones. Raises
    FormatError.
    """
    with open_gguf(path) as file:
        names = [name.removesuffix(SUMS) for name in file.tensors if name.endswith(SUMS)]
        if not names:
            raise FormatError(
                f"{path}: holds no importance, which is kept in tensors named *{SUMS}; write it "
                "with llama-imatrix --output-format gguf"
            )
        return {name: _means(file, name) for name in names}


def _means(file: GGUFFile, name: str) -> Array:
    sums, counts = (_numbers(file, name + end) for end in (SUMS, COUNTS))
    counts = counts.reshape(-1, 1)
    if len(counts) != len(sums):
        raise FormatError(
            f"{file.path}: {len(counts)} counts for {len(sums)} matrices of {name!r}; write it "
            "again"
        )
    means = np.where(counts > 0, sums / np.maximum(counts, 1), 1).astype(np.float32)
    if not (np.isfinite(means).all() and (means >= 0).all()):
        raise FormatError(
            f"{file.path}: importance of {name!r} is negative or not finite; write it again"
        )
    return means


def _numbers(file: GGUFFile, name: str) -> Array:
    """A tensor of f32 as [rows, columns]."""
    raw = file.tensor_bytes(name)
    tensor = file.tensors[name]
    if tensor.dtype is not F32:
        raise FormatError(
            f"{file.path}: {name!r} is {tensor.dtype.name}, and f32 is needed; write it again"
        )
    return raw.view(np.float32).reshape(-1, tensor.ne[0])
