"""K formats: 256 values in groups of 16 or 32, whose scales are codes in units of the block.

Each group is fitted by itself, then the scales of all groups are encoded, then the codes of the
values are chosen again for the encoded scales.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from tensorplug.device import Array
from tensorplug.dtypes import Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, DType
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
    through_half,
    total,
)
from tensorplug_cpu.encoders.fit import (
    Trials,
    fit_affine,
    fit_by_turns,
    fit_positive,
    fit_signed,
)


@dataclass(frozen=True, slots=True)
class Form:
    """A format with a scale and a minimum for each of `groups`, both codes 0 to `limit`.

    `plain` and `weighted` say what to try without and with weights. The weight of a value rises
    from where its square passes `spread` times the mean square of the block.
    """

    groups: int
    limit: int
    plain: Trials
    weighted: Trials
    spread: int


def _form(top: int, groups: int, limit: int, plain: tuple[float, int], spread: int) -> Form:
    """A form whose plain trials begin at `plain[0]` and are `plain[1]` and one more."""
    return Form(
        groups,
        limit,
        Trials(top, plain[0], 0.1, plain[1], absolute=top == 3),
        Trials(top, -0.9, 0.05, 36),
        spread,
    )


TWO_BITS = _form(top=3, groups=16, limit=15, plain=(-0.5, 15), spread=1)
FOUR_BITS = _form(top=15, groups=8, limit=63, plain=(-1.0, 20), spread=2)
FIVE_BITS = _form(top=31, groups=8, limit=63, plain=(-0.5, 15), spread=2)


@dataclass(frozen=True, slots=True)
class Found:
    """Codes [blocks, 256]; codes of scales and minima [blocks, groups]; their units [blocks]."""

    codes: Array
    scales: Array
    minima: Array
    unit: Array
    unit_below: Array


def _grown(values: Array, importance: Array, groups: int, spread: int) -> Array:
    """Weights from importance: more for values that are large compared to the block's."""
    squares = total(np.square(columns(values)))
    mean = np.float32(spread) * squares / np.float32(values.shape[1])
    weights: Array = np.sqrt(mean + np.square(columns(values, groups)))
    weights *= columns(importance, groups)
    return weights


def _plain_weights(x: Array, form: Form) -> Array:
    """Weights where no importance is known: the magnitude, from four bits on above the mean."""
    magnitude = np.abs(x)
    if not form.plain.absolute:
        magnitude += np.sqrt(total(np.square(x)) / np.float32(len(x)))
    return magnitude


def _in_units(numbers: Array, limit: int) -> tuple[Array, Array]:
    """Numbers [groups, blocks] as codes 0 to `limit` of a unit, which the largest sets."""
    largest = np.maximum(numbers.max(axis=0), 0)
    codes = np.rint(divided(limit, largest) * numbers)
    return np.minimum(codes, limit), largest / np.float32(limit)


def _fit(values: Array, importance: Array | None, form: Form) -> Found:
    """Fit groups, then their scales and minima, then codes."""
    x = columns(values, form.groups)
    if importance is None:
        fitted = fit_affine(x, _plain_weights(x, form), form.plain)
        scales, unit = _in_units(fitted.scale, form.limit)
        minima, unit_below = _in_units(fitted.below, form.limit)
    else:
        weights = _grown(values, importance, form.groups, form.spread)
        fitted = fit_affine(x, weights, form.weighted)
        sums = total(weights)
        scales, unit = fit_positive(fitted.scale, sums, form.limit)
        minima, unit_below = fit_positive(fitted.below, sums, form.limit)
    scale, below = through_half(unit) * scales, through_half(unit_below) * minima
    x += below
    x /= scale
    codes = np.clip(np.rint(x, x), 0, form.plain.top)
    np.copyto(codes, fitted.codes, where=scale == 0)
    return Found(
        joined(codes), scales.T.astype(np.uint8), minima.T.astype(np.uint8), unit, unit_below
    )


def _six_bit_pairs(found: Found) -> Array:
    """Eight scales and eight minima of six bits in twelve bytes."""
    scales, minima = found.scales, found.minima
    return np.concatenate(
        [
            scales[:, :4] | (scales[:, 4:] >> 4 << 6),
            minima[:, :4] | (minima[:, 4:] >> 4 << 6),
            (scales[:, 4:] & 15) | (minima[:, 4:] << 4),
        ],
        axis=1,
    )


def _high_bits(bits: Array) -> Array:
    """Bits [blocks, 256], of each 32 values one bit of 32 bytes, the first the lowest."""
    return np.packbits(bits.reshape(-1, 8, 32), axis=1, bitorder="little")[:, 0]


def _q2_k(values: Array, importance: Array | None) -> Array:
    found = _fit(values, importance, TWO_BITS)
    return np.concatenate(
        [
            found.scales | (found.minima << 4),
            packed_pairs(found.codes, 32),
            as_bytes(found.unit, "<f2"),
            as_bytes(found.unit_below, "<f2"),
        ],
        axis=1,
    )


def _q45_k(values: Array, importance: Array | None, form: Form) -> Array:
    found = _fit(values, importance, form)
    parts = [
        as_bytes(found.unit, "<f2"),
        as_bytes(found.unit_below, "<f2"),
        _six_bit_pairs(found),
        nibbles(found.codes & 15, 32),
    ]
    if form is FIVE_BITS:
        parts.insert(3, _high_bits(found.codes >> 4))
    return np.concatenate(parts, axis=1)


def _q3_k(values: Array, importance: Array | None) -> Array:
    x = columns(values, 16)
    if importance is None:
        codes, fitted = fit_by_turns(x, 4)
        inverse = divided(-32, farthest(fitted))
        scales = np.clip(np.rint(inverse * fitted), -32, 31) + 32
        scales[:, inverse == 0] = 0
        unit = divided(1, inverse)
    else:
        weights = _grown(values, importance, 16, 2)
        codes, fitted = fit_signed(x, weights, 4)
        scales, unit = fit_signed(fitted, total(weights), 32)
    codes = _rechosen(x, codes, through_half(unit) * (scales - 32), 4)
    return np.concatenate(
        [
            _high_bits(codes >> 2),
            packed_pairs(codes & 3, 32),
            _six_bits(scales.T.astype(np.uint8)),
            as_bytes(unit, "<f2"),
        ],
        axis=1,
    )


def _rechosen(x: Array, codes: Array, scale: Array, half: int) -> Array:
    """Codes nearest to `x / scale`, or those that were found before where a scale is zero."""
    again = np.clip(np.rint(x / scale), -half, half - 1) + half
    np.copyto(again, codes, where=scale == 0)
    return joined(again)


def _six_bits(scales: Array) -> Array:
    """Sixteen scales of six bits in twelve bytes."""
    top = scales >> 4
    high = top[:, :4] | (top[:, 4:8] << 2) | (top[:, 8:12] << 4) | (top[:, 12:] << 6)
    return np.concatenate([(scales[:, :8] & 15) | (scales[:, 8:] << 4), high], axis=1)


def _q6_k(values: Array, importance: Array | None) -> Array:
    x = columns(values, 16)
    weights = np.square(x) if importance is None else columns(importance, 16)
    codes, fitted = fit_signed(x, weights, 32)
    peak = farthest(fitted)
    none = np.abs(peak) < TINY
    inverse = divided(-128, np.where(none, np.float32(0), peak))
    scales = np.minimum(np.rint(inverse * fitted), 127)
    unit = divided(1, inverse)
    codes[:, :, none] = 0
    whole = _rechosen(x, codes, through_half(unit) * scales, 32)
    return np.concatenate(
        [
            nibbles(whole & 15, 64),
            packed_pairs(whole >> 4, 32),
            scales.T.astype(np.int8).view(np.uint8),
            as_bytes(unit, "<f2"),
        ],
        axis=1,
    )


ENCODERS: dict[DType, Encoder] = {
    Q2_K: _q2_k,
    Q3_K: _q3_k,
    Q4_K: partial(_q45_k, form=FOUR_BITS),
    Q5_K: partial(_q45_k, form=FIVE_BITS),
    Q6_K: _q6_k,
}
