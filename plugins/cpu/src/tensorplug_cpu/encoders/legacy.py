"""Blocks of 32 values with one scale, or a scale and a minimum, fitted to weights.

Without weights these blocks follow from their values, and the `gguf` package encodes them: here
`weights` is never None. The weight of a value grows with its size, compared to the mean of its
whole row, which `row_weights` knows.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from tensorplug.device import Array
from tensorplug.dtypes import Q4_0, Q4_1, Q5_0, Q5_1, DType
from tensorplug_cpu.encoders.common import Encoder, as_bytes, columns, nibbles, total
from tensorplug_cpu.encoders.fit import Trials, fit_affine, fit_signed


def row_weights(rows: Array, values: Array, importance: Array) -> Array:
    """Weights of `values`, some columns of `rows`: importance, times more for larger values."""
    mean = total(columns(np.square(rows))) / np.float32(rows.shape[1])
    weights: Array = importance * np.sqrt(mean[:, None] + np.square(values))
    return weights


def _signed(values: Array, weights: Array | None, bits: int) -> Array:
    """f16 scale, then codes."""
    assert weights is not None
    codes, scale = fit_signed(columns(values), columns(weights), 1 << (bits - 1))
    return np.concatenate([as_bytes(scale, "<f2"), *_packed(codes, bits)], axis=1)


def _affine(values: Array, weights: Array | None, bits: int) -> Array:
    """f16 scale, f16 minimum, then codes."""
    assert weights is not None
    trials = Trials(top=(1 << bits) - 1, first=-0.9, step=0.05, steps=36)
    codes, scale, below = fit_affine(columns(values), columns(weights), trials)
    head = [as_bytes(scale, "<f2"), as_bytes(-below, "<f2")]
    return np.concatenate([*head, *_packed(codes, bits)], axis=1)


def _packed(codes: Array, bits: int) -> list[Array]:
    """Fifth bits, where there are any, as 32 bits; then the four lower bits."""
    whole = codes.T.astype(np.uint8)
    low = nibbles(whole & 15, 16)
    return [low] if bits == 4 else [np.packbits(whole >> 4, axis=1, bitorder="little"), low]


ENCODERS: dict[DType, Encoder] = {
    Q4_0: partial(_signed, bits=4),
    Q4_1: partial(_affine, bits=4),
    Q5_0: partial(_signed, bits=5),
    Q5_1: partial(_affine, bits=5),
}

ROW_WEIGHTS: dict[DType, Callable[[Array, Array, Array], Array]] = dict.fromkeys(
    ENCODERS, row_weights
)
"""How importance becomes the weights of values where that depends on the whole row."""
