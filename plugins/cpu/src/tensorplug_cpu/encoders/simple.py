"""Formats whose blocks follow from their values without a search.

Weights change nothing here: there is one block for given values.
"""

from functools import cache

import numpy as np

from tensorplug.device import Array
from tensorplug.dtypes import NVFP4, Q1_0, Q2_0, Q8_1, Q8_K, DType
from tensorplug_cpu.encoders.common import (
    Encoder,
    as_bytes,
    away_from_zero,
    columns,
    divided,
    farthest,
    nibbles,
    packed_pairs,
    total,
)


def _q1_0(values: Array, _weights: Array | None) -> Array:
    """f16 mean of the magnitudes, then 128 bits: 1 where a value is not negative."""
    scale = total(np.abs(columns(values))) / np.float32(128)
    bits = np.packbits(values >= 0, axis=1, bitorder="little")
    return np.concatenate([as_bytes(scale, "<f2"), bits], axis=1)


def _q2_0(values: Array, _weights: Array | None) -> Array:
    """f16 largest magnitude, then 64 codes of 2 bits: 0, 1, 2 for -1, 0, 1 times the scale."""
    scale = np.abs(values).max(axis=1)
    codes = away_from_zero(values * divided(1, scale)[:, None]) + 1
    return np.concatenate([as_bytes(scale, "<f2"), packed_pairs(codes.astype(np.uint8), 1)], axis=1)


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


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
"""Magnitudes of E2M1; the fourth bit of a code is the sign."""


@cache
def _scales() -> tuple[Array, Array]:
    """Scales with four bits of exponent and three of fraction: the values of codes 0 to 126, and
    from which value on each code but the first is chosen.

    A value half-way between two scales takes the larger. As in ggml, subnormal scales are not
    rounded up to normal ones, and what would round to 256 or more takes the last code, 448.
    """
    code = np.arange(127)
    exponent, fraction = code >> 3, code & 7
    scales = np.where(exponent, np.ldexp(8.0 + fraction, exponent - 10), np.ldexp(fraction, -9))
    starts = (scales[1:] + scales[:-1]) / 2
    starts[7] = scales[8]
    starts[119:] = starts[119]
    return scales.astype(np.float32), starts.astype(np.float32)


def _nvfp4(values: Array, _weights: Array | None) -> Array:
    """Four scales of 8 bits for 16 values each, then their codes of 4 bits."""
    scales, starts = _scales()
    groups = values.reshape(-1, 16)
    peaks = np.abs(groups).max(axis=1) / np.float32(6)
    stored = np.searchsorted(starts, peaks, side="right").astype(np.uint8)
    codes = _nearest_fp4(groups, scales[stored][:, None]).reshape(len(values), 64)
    return np.concatenate([stored.reshape(-1, 4), nibbles(codes, 8)], axis=1)


def _nearest_fp4(values: Array, scale: Array) -> Array:
    """Codes whose values times `scale` are nearest; of two equally near the smaller magnitude."""
    magnitude = np.abs(values)
    best = magnitude.copy()
    codes = np.zeros(values.shape, np.uint8)
    for code, step in enumerate(FP4[1:], 1):
        error = np.abs(step * scale - magnitude)
        nearer = error < best
        codes[nearer] = code
        np.copyto(best, error, where=nearer)
    codes[(values < 0) & (codes > 0)] |= 8
    return codes


ENCODERS: dict[DType, Encoder] = {
    Q8_1: _q8_1,
    Q8_K: _q8_k,
    Q1_0: _q1_0,
    Q2_0: _q2_0,
    NVFP4: _nvfp4,
}
