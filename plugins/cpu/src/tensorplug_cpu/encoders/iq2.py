"""IQ2_XXS, IQ2_XS and IQ2_S: tuples of eight magnitudes 1, 3, 5 from grids of 256, 512 and 1024.

Scales are odd multiples of a unit, 0 to 15 standing for 1 to 31 units.
"""

import numpy as np

from tensorplug.device import Array
from tensorplug.dtypes import IQ2_S, IQ2_XS, IQ2_XXS, DType
from tensorplug_cpu.encoders.common import Encoder, as_bytes, divided, nibbles, packed_pairs, total
from tensorplug_cpu.encoders.iq_grid import grid
from tensorplug_cpu.encoders.iq_search import (
    ONE,
    Search,
    by_block,
    needed,
    quantised,
    search,
    signs_and_scales,
    spread,
    weighed,
)

QP_LEVELS = 4
"""Levels 0 to 4 are what the first scale of IQ2_XXS is fitted to."""


def first_scale(x: Array, weights: Array) -> tuple[Array, Array]:
    """The best scale of magnitudes [elements, groups] for levels 0 to 4, and three times that.

    A magnitude below zero (its sign was flipped) takes level -1, which the format of the levels,
    a byte, turns into 255 until another level is chosen for it. ggml does the same.
    """
    largest = np.where(x.max(axis=0) > 0, x.max(axis=0), ONE)
    inverse = _best_start(x, weights, largest)
    wanted = np.fmin(np.rint(inverse * x), QP_LEVELS)
    wx = weights * x
    top, bottom = total(wx * wanted), total(weights * wanted * wanted)
    levels = np.mod(wanted, 256).astype(np.float32)
    for _ in range(5):
        before = levels.copy()
        top, bottom = _improved(x, weights, levels, top, bottom)
        if np.array_equal(before, levels):
            break
    scale = np.where(bottom > 0, divided(top, bottom), np.float32(0))
    return scale, scale * np.float32(3)


def _best_start(x: Array, weights: Array, largest: Array) -> Array:
    """The inverse scale of least error among those that put the largest value at 3.6 to 4.4."""
    inverse = np.float32(QP_LEVELS) / largest
    levels = np.mod(np.rint(inverse * x), 256)
    miss = x - (ONE / inverse) * levels
    least = total(weights * miss * miss)
    for k in (-4, -3, -2, -1, 1, 2, 3, 4):
        tried = (np.float32(0.1) * np.float32(k) + np.float32(QP_LEVELS)) / largest
        miss = x - (ONE / tried) * np.fmin(np.rint(tried * x), QP_LEVELS)
        error = total(weights * miss * miss)
        better = error < least
        least = np.where(better, error, least)
        inverse = np.where(better, tried, inverse)
    return inverse


def _improved(
    x: Array, weights: Array, levels: Array, top: Array, bottom: Array
) -> tuple[Array, Array]:
    """Change `levels` one element after the other where that improves the fit; the sums."""
    for i in range(len(x)):
        wx = weights[i] * x[i]
        top_rest = top - wx * levels[i]
        bottom_rest = bottom - weights[i] * levels[i] * levels[i]
        able = (top_rest > 0) & (bottom_rest > 0)
        level = np.fmin(np.rint(divided(x[i] * bottom_rest, top_rest)), QP_LEVELS)
        top_new = top_rest + wx * level
        bottom_new = bottom_rest + weights[i] * level * level
        better = able & (level != levels[i])
        better &= top_new * top_new * bottom > top * top * bottom_new
        levels[i] = np.where(better, np.mod(level, 256), levels[i])
        top = np.where(better, top_new, top)
        bottom = np.where(better, bottom_new, bottom)
    return top, bottom


XS = Search(top=5, step=0.1, tries=9, tiny=1e-15, even_signs=True)
S = Search(top=5, step=0.1, tries=9, tiny=1e-8, even_signs=False)
XXS = Search(top=5, step=0.1, tries=6, tiny=1e-15, even_signs=True, again="all", start=first_scale)

S_UNIT = np.float32(0.9875)
"""IQ2_S stores its unit a little smaller: that lowers the error on average."""


def _iq2_xxs(values: Array, weights: Array | None) -> Array:
    """f16 unit, then eight times 4 bytes of points and 4 of 4 x 7 bits signs and 4 bits scale."""
    blocks = len(values)
    weight = weighed(values, needed(IQ2_XXS, weights), spread(values, 1))
    fit = search(grid("IQ2_XXS"), XXS, values.reshape(-1, 32), weight.reshape(-1, 32))
    scales, unit = quantised(fit.scale.reshape(blocks, 8), 16)
    points = by_block(fit.numbers, blocks).astype(np.uint8).reshape(blocks, 8, 4)
    signs = signs_and_scales(by_block(fit.signs, blocks), scales)
    both = np.concatenate([points, signs.reshape(blocks, 8, 4)], axis=2)
    return np.concatenate([as_bytes(unit, "<f2"), both.reshape(blocks, 64)], axis=1)


def _iq2_xs(values: Array, weights: Array | None) -> Array:
    """f16 unit, 32 words of 9 bits point and 7 bits signs, 16 scales of 4 bits."""
    blocks = len(values)
    weight = weighed(values, needed(IQ2_XS, weights), spread(values, 1))
    fit = search(grid("IQ2_XS"), XS, values.reshape(-1, 16), weight.reshape(-1, 16))
    scales, unit = quantised(fit.scale.reshape(blocks, 16), 16)
    words = fit.numbers | (fit.signs & np.int32(127)) << 9
    fields = [as_bytes(unit, "<f2"), as_bytes(by_block(words, blocks), "<u2"), nibbles(scales, 1)]
    return np.concatenate(fields, axis=1)


def _iq2_s(values: Array, weights: Array | None) -> Array:
    """f16 unit, low bytes of 32 points, 32 bytes of signs, high bits of points, 16 scales."""
    blocks = len(values)
    if weights is None:
        weight = np.float32(0.25) * spread(values, 2) + np.square(values)
    else:
        weight = weighed(values, weights, spread(values, 2))
    fit = search(grid("IQ2_S"), S, values.reshape(-1, 16), weight.reshape(-1, 16))
    scales, unit = quantised(fit.scale.reshape(blocks, 16), 16)
    numbers = by_block(fit.numbers, blocks)
    fields = [
        as_bytes(unit * S_UNIT, "<f2"),
        (numbers & 255).astype(np.uint8),
        by_block(fit.signs, blocks),
        packed_pairs((numbers >> 8).astype(np.uint8), 1),
        nibbles(scales, 1),
    ]
    return np.concatenate(fields, axis=1)


ENCODERS: dict[DType, Encoder] = {IQ2_XXS: _iq2_xxs, IQ2_XS: _iq2_xs, IQ2_S: _iq2_s}
