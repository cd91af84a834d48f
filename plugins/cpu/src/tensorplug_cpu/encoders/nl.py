"""IQ4 formats: codes of four bits that stand for a table of 16 values, dense around zero."""

from functools import cache
from itertools import pairwise

import numpy as np

from tensorplug.device import Array
from tensorplug.dtypes import IQ4_NL, IQ4_XS, DType
from tensorplug_cpu.encoders.common import (
    TINY,
    Encoder,
    as_bytes,
    columns,
    divided,
    farthest,
    joined,
    nibbles,
    packed_pairs,
    total,
)

TABLE = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
TRIES = 7
"""Scales are tried that put the largest value up to this far from the first of the table."""


@cache
def _starts() -> list[np.float32]:
    """From which f32 on each value of the table but the first is the nearest.

    Half-way between two values the upper is; differences are rounded, so it begins a little below.
    """
    starts = []
    for below, above in pairwise(TABLE):
        start = (below + above) / np.float32(2)
        while (lower := np.nextafter(start, np.float32(-np.inf))) - below >= above - lower:
            start = lower
        starts.append(start)
    return starts


def _nearest(x: Array) -> Array:
    """Codes of the values nearest to `x`, uint8."""
    codes = np.zeros(x.shape, np.uint8)
    for start in _starts():
        codes += x >= start
    return codes


def _sums(x: Array, weights: Array, inverse: Array) -> tuple[Array, Array]:
    """Weighted sums of table values times `x`, and of table values squared, for a scale."""
    values = TABLE[_nearest(x * inverse)]
    weighted = weights * values
    sum_xq = total(weighted * x)
    weighted *= values
    return sum_xq, total(weighted)


def _fit(x: Array, weights: Array) -> Array:
    """The best scale of each group: `x` and weights [elements, ...]."""
    peak = farthest(x)
    none = np.abs(peak) < TINY
    peak = np.where(none, np.float32(1), peak)
    sum_xq, sum_q2 = _sums(x, weights, 1 / (-peak / TABLE[0]))
    scale = divided(sum_xq, sum_q2)
    best = scale * sum_xq
    for shift in range(-TRIES, TRIES + 1):
        sum_xq, sum_q2 = _sums(x, weights, (np.float32(shift) + TABLE[0]) / peak)
        better = (sum_q2 > 0) & (sum_xq * sum_xq > best * sum_q2)
        np.copyto(scale, sum_xq / sum_q2, where=better)
        np.copyto(best, scale * sum_xq, where=better)
    scale[none] = 0
    return scale


def _weights(values: Array, importance: Array | None, groups: int) -> tuple[Array, Array]:
    """The groups of blocks and their weights, [elements, groups, blocks]."""
    x = columns(values, groups).reshape(-1, groups, len(values))
    if importance is None:
        return x, np.square(x)
    mean = total(np.square(columns(values))) * np.float32(2 / values.shape[1])
    weights = np.sqrt(mean + np.square(x))
    weights *= columns(importance, groups).reshape(x.shape)
    return x, weights


def _iq4_nl(values: Array, importance: Array | None) -> Array:
    """f16 scale, then 32 codes."""
    x, weights = _weights(values, importance, 1)
    scale = _fit(x, weights)
    codes = joined(_nearest(x * divided(1, scale)))
    return np.concatenate([as_bytes(scale[0], "<f2"), nibbles(codes, 16)], axis=1)


def _iq4_xs(values: Array, importance: Array | None) -> Array:
    """f16 unit, eight scales of six bits: two high bits of each, four low bits; then codes."""
    x, weights = _weights(values, importance, 8)
    fitted = _fit(x, weights)
    unit = -farthest(fitted) / np.float32(32)
    scales = np.clip(np.rint(divided(1, unit) * fitted), -32, 31)
    codes = joined(_nearest(x * divided(1, unit * scales)))
    stored = (scales + 32).T.astype(np.uint8)
    parts = [
        as_bytes(unit, "<f2"),
        packed_pairs(stored >> 4, 1),
        nibbles(stored & 15, 1),
        nibbles(codes, 16),
    ]
    return np.concatenate(parts, axis=1)


ENCODERS: dict[DType, Encoder] = {IQ4_NL: _iq4_nl, IQ4_XS: _iq4_xs}
