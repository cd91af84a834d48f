"""Memory of a GPU as CuPy's arrays, which DLPack and `__cuda_array_interface__` hand on."""

from typing import Any

import cupy
import numpy as np

from tensorplug.device import Tensor
from tensorplug.errors import ShapeError


def array_of(tensor: Tensor, memory: Any) -> Any:
    """View memory from the pointer `memory` on as `tensor` lies in it; the array keeps it alive.

    Shapes and types are those of `Tensor.numpy`: bf16 comes as uint16, block types as bytes.
    """
    if tensor.splits_blocks:
        raise ShapeError(
            f"{tensor}: is a transposed block type, whose elements have no addresses; "
            f"use {tensor.sources[0]}"
        )
    if not tensor.dtype.is_block:
        return cupy.ndarray(tensor.shape, tensor.dtype.storage, memory, tensor.strides)
    row = tensor.dtype.row_size(tensor.ne[0])
    return cupy.ndarray(
        (*tensor.shape[:-1], row), np.dtype(np.uint8), memory, (*tensor.strides[:-1], 1)
    )
