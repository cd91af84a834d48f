"""What all encoders share: how blocks lie while they are encoded, sums, rounding, packing.

A search asks the same few questions of every block, so NumPy is fed with the blocks side by side:
arrays are [elements, blocks], and an operation runs over all blocks at once. Sums over elements
then add one element after the other, in f32. That order is part of what is computed: a search
keeps the better of two errors that differ in the last bits, so another order gives other blocks.
"""

from collections.abc import Callable

import numpy as np

from tensorplug.device import Array

Encoder = Callable[[Array, Array | None], Array]
"""From values and their weights (or None), f32 [blocks, elements], to uint8 [blocks, bytes]."""

TINY = np.float32(1e-15)
"""Groups whose largest magnitude is below are stored as zeros."""


def columns(values: Array, groups: int = 1) -> Array:
    """Blocks [blocks, elements] as [elements / groups, groups, blocks], without gaps.

    With one group the middle axis is left out.
    """
    count = len(values)
    if groups == 1:
        return np.ascontiguousarray(values.T)
    return np.ascontiguousarray(values.reshape(count, groups, -1).transpose(2, 1, 0))


def joined(codes: Array) -> Array:
    """Codes [elements / groups, groups, blocks] as uint8 [blocks, elements]."""
    return codes.astype(np.uint8).transpose(2, 1, 0).reshape(codes.shape[2], -1)


def total(terms: Array) -> Array:
    """The sum over axis 0, each term added to the sum of those before it."""
    if terms.size == len(terms):  # NumPy would add a single column pairwise
        summed: Array = np.add.accumulate(terms, axis=0)[-1]
        return summed
    added: Array = np.add.reduce(terms, axis=0)
    return added


def divided(top: Array | np.float32 | float, bottom: Array) -> Array:
    """`top / bottom`, and 0 where `bottom` is 0."""
    zero = bottom == 0
    quotient: Array = np.divide(top, np.where(zero, np.float32(1), bottom), dtype=np.float32)
    quotient[zero] = 0
    return quotient


def farthest(x: Array) -> Array:
    """The value of largest magnitude along axis 0, with its sign; of equal ones the first."""
    places = np.abs(x).argmax(axis=0)
    found: Array = np.take_along_axis(x, places[None], axis=0)[0]
    return found


def away_from_zero(x: Array) -> Array:
    """Round halves away from zero, as C does."""
    magnitude = np.abs(x)
    whole = np.floor(magnitude)
    whole += (magnitude - whole) >= 0.5
    rounded: Array = np.copysign(whole, x)
    return rounded


def as_bytes(numbers: Array, kind: str) -> Array:
    """One number per block as the bytes of NumPy type `kind`: uint8 [blocks, size]."""
    return np.ascontiguousarray(numbers, dtype=kind).view(np.uint8).reshape(len(numbers), -1)


def through_half(numbers: Array) -> Array:
    """What is left of f32 numbers that are stored as f16."""
    return numbers.astype(np.float16).astype(np.float32)


def nibbles(codes: Array, group: int) -> Array:
    """Codes of four bits [blocks, n]: of each 2 * `group`, the first half in the low bits."""
    pairs = codes.reshape(len(codes), -1, 2, group)
    packed: Array = pairs[:, :, 0] | (pairs[:, :, 1] << 4)
    return packed.reshape(len(codes), -1)


def packed_pairs(codes: Array, group: int) -> Array:
    """Codes of two bits [blocks, n]: of each 4 * `group`, the first quarter in the lowest bits."""
    fours = codes.reshape(len(codes), -1, 4, group)
    packed: Array = fours[:, :, 0].copy()
    for i in (1, 2, 3):
        packed |= fours[:, :, i] << (2 * i)
    return packed.reshape(len(codes), -1)
