"""IQ1_S and IQ1_M: tuples of eight values -1, 0, 1 from a grid of 2048, all shifted by an eighth.

A group of 32 (IQ1_S) or 16 values (IQ1_M) has a scale, an odd multiple of a unit, 0 to 7 standing
for 1 to 15 units. The shift is up or down, for a group (IQ1_S) or for each tuple (IQ1_M). With
values in rising order, the three levels are three runs, so all ways to cut a group are tried.
Arrays of groups are [elements, groups].
"""

from dataclasses import dataclass

import numpy as np

from tensorplug.device import Array
from tensorplug.dtypes import IQ1_M, IQ1_S, DType
from tensorplug_cpu.encoders.common import Encoder, as_bytes, divided, total
from tensorplug_cpu.encoders.iq_grid import Grid, grid
from tensorplug_cpu.encoders.iq_search import (
    by_block,
    needed,
    own_weights,
    quantised,
    spread,
    weighed,
)

SHIFTED = np.array([[-0.875, 0.125, 1.125], [-1.125, -0.125, 0.875]], np.float32)
"""Values of the levels: shifted up, shifted down."""

S_UNIT, M_UNIT = np.float32(1.125), np.float32(1.1125)
"""Units are stored a little larger than they were found: that lowers the error on average."""

S_TINY, M_TINY = np.float32(1e-12), np.float32(1e-7)
"""Groups whose magnitudes all lie below are stored as zeros."""


class Best:
    """The best cut of each group so far, and its place among the cuts and shifts."""

    def __init__(self, scale: Array) -> None:
        self.scale = scale
        self.score = np.full_like(scale, -np.finfo(np.float32).max)
        self.place = np.zeros(len(scale), np.int16)

    def take(self, place: int, top: Array, bottom: Array) -> None:
        """Consider a cut: sums of w * x * q and w * q * q over each group, q its levels."""
        better = (bottom > 0) & (top * top > self.score * bottom)
        np.divide(top, bottom, out=self.scale, where=better)
        np.multiply(self.scale, top, out=self.score, where=better)
        self.place[better] = place


@dataclass(frozen=True, slots=True)
class Cut:
    """Levels 0 to 2 [elements, groups], scales [groups], and whether each tuple is shifted down,
    bool [tuples, groups]."""

    levels: Array
    scale: Array
    down: Array


def _cuts(elements: int) -> list[tuple[int, int]]:
    """All (i, j): values before i take the lowest level, those from j on the highest."""
    return [(i, j) for i in range(elements + 1) for j in range(i, elements + 1)]


def _levels(order: Array, place: Array) -> Array:
    """Levels of values, given which of `_cuts` was best and the `order` in which values rise."""
    cuts = np.array(_cuts(len(order)))[place]
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(len(order))[:, None], axis=0)
    return (rank >= cuts[:, 0]).astype(np.int8) + (rank >= cuts[:, 1])


def _upright(best: Best, order: Array, cuts: Array, down: Array) -> Cut:
    """The best cut, turned over where its scale is negative."""
    levels = _levels(order, cuts)
    negative = best.scale < 0
    levels = np.where(negative, 2 - levels, levels)
    return Cut(levels, np.abs(best.scale), down ^ negative)


def _cut_together(x: Array, weights: Array) -> Cut:
    """The best cut and shift of each group, one shift for all of its values."""
    order = np.argsort(x, axis=0, kind="stable")
    best = Best(np.abs(x).max(axis=0))
    w = np.take_along_axis(weights, order, axis=0)
    sums = _running(w * np.take_along_axis(x, order, axis=0))
    heavy = _running(w)
    up, down = SHIFTED
    for place, (i, j) in enumerate(_cuts(len(x))):
        tops = (sums[i], sums[j] - sums[i], sums[-1] - sums[j])
        bottoms = (heavy[i], heavy[j] - heavy[i], heavy[-1] - heavy[j])
        for side, q in enumerate((up, down)):
            top = tops[0] * q[0] + tops[1] * q[1] + tops[2] * q[2]
            bottom = bottoms[0] * q[0] * q[0] + bottoms[1] * q[1] * q[1] + bottoms[2] * q[2] * q[2]
            best.take(2 * place + side, top, bottom)
    shifts = np.broadcast_to(best.place % 2 == 1, (len(x) // 8, x.shape[1]))
    return _upright(best, order, best.place // 2, shifts)


def _running(terms: Array) -> Array:
    """Sums of the first 0, 1, 2, ... terms: [elements + 1, groups]."""
    sums = np.zeros((len(terms) + 1, *terms.shape[1:]), np.float32)
    np.add.accumulate(terms, axis=0, out=sums[1:])
    return sums


def _cut_apart(x: Array, weights: Array) -> Cut:
    """The best cut and shifts of each group of two tuples, each tuple with a shift of its own."""
    order = np.argsort(x, axis=0, kind="stable")
    best = Best(np.abs(x).max(axis=0))
    w = np.take_along_axis(weights, order, axis=0)
    terms = np.stack([w * np.take_along_axis(x, order, axis=0), w])
    first = order < len(x) // 2
    halves = [_Half(np.where(half, terms, np.float32(0))) for half in (first, ~first)]
    for place, (i, j) in enumerate(_cuts(len(x))):
        one, two = (half.fitted(i, j) for half in halves)
        for pair in range(4):
            top, bottom = (a + b for a, b in zip(one[pair // 2], two[pair % 2], strict=True))
            best.take(4 * place + pair, top, bottom)
    mixed = best.place % 4
    return _upright(best, order, best.place // 4, np.stack([mixed >= 2, mixed % 2 == 1]))


class _Half:
    """Running sums of w * x and of w over one tuple of each group, [2, elements, groups]."""

    def __init__(self, terms: Array) -> None:
        self.sums, self.heavy = _running(terms[0]), _running(terms[1])
        self.tops = [q[2] * self.sums[-1] for q in SHIFTED]
        self.bottoms = [self.heavy[-1] * q[2] * q[2] for q in SHIFTED]

    def fitted(self, i: int, j: int) -> list[tuple[Array, Array]]:
        """Sums of w * x * q and of w * q * q for the cut (i, j), shifted up and shifted down.

        They are what is left of the highest level for all: levels differ by one.
        """
        lower = self.sums[i] + self.sums[j]
        fits = []
        for q, top, bottom in zip(SHIFTED, self.tops, self.bottoms, strict=True):
            squares = q * q
            fewer = bottom + (squares[0] - squares[1]) * self.heavy[i]
            fits.append((top - lower, fewer + (squares[1] - squares[2]) * self.heavy[j]))
        return fits


def _placed(points: Grid, cut: Cut, x: Array, weights: Array) -> tuple[Array, Array]:
    """Numbers of grid points [tuples, groups] for the levels, and scales fitted to them."""
    tuples = points.tuples(cut.levels.reshape(-1, 8, x.shape[1]).astype(np.float32))
    numbers: Array = points.numbers[tuples]
    missing = numbers < 0
    place, group = np.nonzero(missing)
    if not len(place):
        return numbers, cut.scale
    q = SHIFTED[cut.down[place, group].astype(np.intp)][:, None, :]
    miss = (
        cut.scale[group][:, None, None] * q
        - x.reshape(-1, 8, x.shape[1])[place, :, group][:, :, None]
    )
    costs = weights.reshape(-1, 8, x.shape[1])[place, :, group][:, :, None] * miss
    numbers[missing] = points.nearest(tuples[missing], costs * miss)
    wq = weights * (q := _values(points, numbers, cut.down))
    top, bottom = total(wq * x), total(wq * q)
    changed = missing.any(axis=0) & (top > 0) & (bottom > 0)
    return numbers, np.where(changed, divided(top, bottom), cut.scale)


def _values(points: Grid, numbers: Array, down: Array) -> Array:
    """The values that points stand for before they are scaled: f32 [elements, groups]."""
    levels = points.points[:, numbers].transpose(1, 0, 2)
    values: Array = np.where(down[:, None], SHIFTED[1][levels], SHIFTED[0][levels])
    return values.reshape(-1, numbers.shape[1])


def _iq1_s(values: Array, weights: Array | None) -> Array:
    """f16 unit, low bytes of 32 points, eight words of 4 x 3 bits points, scale and shift."""
    blocks = len(values)
    weight = weighed(values, needed(IQ1_S, weights), spread(values, 2))
    x, w = (np.ascontiguousarray(part.reshape(-1, 32).T) for part in (values, weight))
    live = ~(np.abs(x).max(axis=0) < S_TINY)
    cut = _cut_together(x, w)
    points = grid("IQ1_S")
    numbers, scale = _placed(points, cut, x, w)
    numbers[:, ~live] = 0
    scales, unit = quantised(np.where(live, scale, np.float32(0)).reshape(blocks, 8), 8)
    found = by_block(numbers, blocks)
    words = scales.astype(np.int32) << 12 | (cut.down[0] & live).reshape(blocks, 8) << 15
    for k in range(4):
        words |= (found[:, k::4] >> 8) << (3 * k)
    fields = [
        as_bytes(unit * S_UNIT, "<f2"),
        (found & 255).astype(np.uint8),
        as_bytes(words, "<u2"),
    ]
    return np.concatenate(fields, axis=1)


def _iq1_m(values: Array, weights: Array | None) -> Array:
    """Low bytes of 32 points, their 3 high bits and shift, 16 scales of 3 bits and the f16 unit."""
    blocks = len(values)
    weight = own_weights(values, weights)
    x, w = (np.ascontiguousarray(part.reshape(-1, 16).T) for part in (values, weight))
    live = ~(np.abs(x).max(axis=0) < M_TINY)
    cut = _cut_apart(x, w)
    points = grid("IQ1_S")
    numbers, scale = _placed(points, cut, x, w)
    numbers[:, ~live] = 0
    down = cut.down & live
    scales, unit = quantised(np.where(live, scale, np.float32(0)).reshape(blocks, 16), 8)
    q = _values(points, numbers, down) * (2 * scales.reshape(-1).astype(np.float32) + 1)
    top, bottom = (
        total(np.ascontiguousarray(by_block(terms, blocks).T)) for terms in (w * q * x, w * q * q)
    )
    unit = np.where(bottom > 0, divided(top, bottom), unit)
    unit[~live.reshape(blocks, 16).any(axis=1)] = 0
    found = by_block(numbers, blocks)
    high = (found >> 8 | by_block(down, blocks) << 3).astype(np.uint8)
    fields = [
        (found & 255).astype(np.uint8),
        high[:, ::2] | high[:, 1::2] << 4,
        _scales_and_unit(scales, unit * M_UNIT),
    ]
    return np.concatenate(fields, axis=1)


def _scales_and_unit(scales: Array, unit: Array) -> Array:
    """Four words of four scales of 3 bits each, and four bits of the f16 unit on top of them."""
    bits = as_bytes(unit, "<f2").view("<u2").astype(np.uint16)
    words = np.stack([bits >> (4 * k) << 12 for k in range(4)], axis=1).reshape(-1, 4)
    for k in range(4):
        words |= scales[:, k::4].astype(np.uint16) << (3 * k)
    return as_bytes(words, "<u2")


ENCODERS: dict[DType, Encoder] = {IQ1_S: _iq1_s, IQ1_M: _iq1_m}
