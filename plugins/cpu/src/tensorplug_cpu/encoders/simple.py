"""Formats whose blocks follow from their values without a search.

Weights change nothing here: there is one block for given values.
"""

import numpy as np

from tensorplug.dtypes import Q8_1, Q8_K, DType
from tensorplug.tensor import Array
from tensorplug_cpu.encoders.common import (
    Encoder,
    as_bytes,
    away_from_zero,
    divided,
    farthest,
)


def _q8_1(values: Array, _weights: Array | None) -> Array:
    """f16 scale, f16 sum of what is stored, 32 signed bytes."""
    scale = np.abs(values).max(axis=1) / np.float32(127)
    codes = away_from_zero(values * divided(1, scale)[:, None])
    sums = codes.sum(axis=1) * scale
    return np.concatenate(
        [as_bytes(scale, "<f2"), as_bytes(sums, "<f2"), codes.astype(np.int8).view(np.uint8)],
        axis=1,
    )


def _q8_k(values: Array, _weights: Array | None) -> Array:
    """f32 scale, 256 signed bytes, then the sums of each 16 of them as 16-bit integers."""
    inverse = divided(-127, farthest(values.T))
    codes = np.minimum(np.rint(values * inverse[:, None]), 127).astype(np.int8)
    sums = codes.reshape(-1, 16, 16).sum(axis=2, dtype=np.int16)
    return np.concatenate(
        [as_bytes(divided(1, inverse), "<f4"), codes.view(np.uint8), as_bytes(sums, "<i2")], axis=1
    )


ENCODERS: dict[DType, Encoder] = {Q8_1: _q8_1, Q8_K: _q8_k}
