"""The search that the IQ2 and IQ3 formats share: one scale a group of values, tuples of a grid.

A group holds 16 or 32 values. Signs are stored apart, so the search sees magnitudes. It tries a
range of scales; for each it rounds the magnitudes to levels 1, 3, 5, ..., replaces tuples that
the grid lacks by their cheapest candidates, and keeps the levels whose best scale leaves the
smallest weighted error. Then tuples from outside the grid are looked for once more with that
scale. Arrays of groups are [tuples, width, groups], so that all groups are searched side by side.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tensorplug.device import Array, OptionError
from tensorplug.dtypes import DType
from tensorplug_cpu.encoders.common import as_bytes, divided, total
from tensorplug_cpu.encoders.iq_grid import Grid

ONE = np.float32(1)
HALF = np.float32(0.5)


@dataclass(frozen=True, slots=True)
class Search:
    """How a format searches.

    Scales are tried that put the largest magnitude at `top + step * k`, for k from `-tries` to
    `tries`; groups whose magnitudes all lie below `tiny` become zeros. With `even_signs` the
    number of negative values in eight must be even. `again` says which tuples are placed a last
    time: those from outside the grid, all of groups with such a tuple, or all. `start` gives
    another first scale and what plays the part of the largest magnitude.
    """

    top: int
    step: float
    tries: int
    tiny: float
    even_signs: bool
    again: Literal["outside", "touched", "all"] = "outside"
    start: Callable[[Array, Array], tuple[Array, Array]] | None = None

    def tops(self) -> Array:
        """Where the largest magnitude is put, in the order of trial."""
        k = np.arange(-self.tries, self.tries + 1, dtype=np.float32)
        return np.float32(self.top) + k * np.float32(self.step)


@dataclass(frozen=True, slots=True)
class Fit:
    """What a search found: `numbers` of grid points [tuples, groups], `scale` f32 [groups] (0 for
    groups of zeros), and uint8 `signs` [elements / 8, groups], a bit 1 where negative."""

    numbers: Array
    scale: Array
    signs: Array


@dataclass(frozen=True, slots=True)
class Problem:
    """Magnitudes `x` and their weights, f32 [tuples, width, groups], and what follows from them."""

    grid: Grid
    x: Array
    weights: Array

    def fitted(self, numbers: Array) -> tuple[Array, Array]:
        """Sums over a group of w * x * q and w * q * q, q being the levels of `numbers`."""
        count = self.x.shape[2]
        odd = (2 * self.grid.points + 1).astype(np.float32)
        q = np.empty_like(self.x)
        for i in range(self.grid.width):
            q[:, i] = odd[i][numbers]
        wq = self.weights * q
        wq *= q
        q *= self.weights * self.x
        return total(q.reshape(-1, count)), total(wq.reshape(-1, count))

    def rounded(self, inverse: Array) -> Array:
        """The nearest levels, 0 and up, at scale `1 / inverse`: tuples [tuples, groups]."""
        levels = self.x * inverse
        levels -= ONE
        levels *= HALF
        np.rint(levels, out=levels)
        np.fmax(levels, 0, out=levels)
        np.fmin(levels, self.grid.levels - 1, out=levels)
        return self.grid.tuples(levels)

    def placed(self, tuples: Array, scale: Array, where: Array | None = None) -> Array:
        """Numbers of grid points for `tuples`, candidates being compared at `scale` [groups]."""
        numbers: Array = self.grid.numbers[tuples]
        missing = numbers < 0 if where is None else (numbers < 0) & where
        place, group = np.nonzero(missing)
        if len(place):
            odd = 2 * np.arange(self.grid.levels, dtype=np.float32) + 1
            miss = scale[group][:, None, None] * odd - self.x[place, :, group][:, :, None]
            costs = np.sqrt(self.weights[place, :, group])[:, :, None] * miss
            costs *= miss
            numbers[missing] = self.grid.nearest(tuples[missing], costs)
        return numbers


def search(grid: Grid, how: Search, values: Array, weights: Array) -> Fit:
    """Fit groups, f32 `values` and `weights` [groups, elements]."""
    count = len(values)
    signed = np.ascontiguousarray(values.T).reshape(-1, 8, count)
    heavy = np.ascontiguousarray(weights.T)
    magnitudes, signs = _unsigned(signed, heavy.reshape(-1, 8, count), even=how.even_signs)
    shape = (-1, grid.width, count)
    problem = Problem(grid, magnitudes.reshape(shape), heavy.reshape(shape))
    largest = magnitudes.max(axis=(0, 1))
    live = ~(largest < np.float32(how.tiny))
    if how.start is None:
        scale, reach = largest / np.float32(how.top), largest
    else:
        scale, reach = how.start(magnitudes.reshape(-1, count), heavy)
        live &= reach > 0
    numbers, scale = _tried(problem, how, scale, np.where(live, reach, ONE))
    backwards = live & (scale < 0)
    signs[:, backwards] = ~signs[:, backwards]
    signs[:, ~live] = 0
    numbers[:, ~live] = 0
    return Fit(numbers, np.where(live, np.abs(scale), np.float32(0)), signs)


def _unsigned(signed: Array, weights: Array, *, even: bool) -> tuple[Array, Array]:
    """Magnitudes, and signs as bits [eights, groups], of values [eights, 8, groups].

    Where the number of signs must be even and is odd, the sign that costs least to get wrong is
    flipped; the magnitude of its value is then below zero.
    """
    negative = signed < 0
    magnitudes = np.abs(signed)
    if even:
        price = weights * signed
        price *= signed
        cheapest = price.argmin(axis=1)
        eight, group = np.nonzero(negative.sum(axis=1) % 2)
        at = cheapest[eight, group]
        magnitudes[eight, at, group] = -magnitudes[eight, at, group]
        negative[eight, at, group] ^= True
    return magnitudes, np.packbits(negative, axis=1, bitorder="little")[:, 0]


def _tried(problem: Problem, how: Search, scale: Array, reach: Array) -> tuple[Array, Array]:
    """The numbers [tuples, groups] and scales of the best trial, refined."""
    best = np.zeros_like(reach)
    kept = np.zeros((len(problem.x), len(reach)), np.int32)
    on_grid = np.ones(kept.shape, bool)
    for top in how.tops():
        inverse = top / reach
        tuples = problem.rounded(inverse)
        numbers = problem.placed(tuples, ONE / inverse)
        top_sum, bottom = problem.fitted(numbers)
        better = (bottom > 0) & (top_sum * top_sum > best * bottom)
        scale = np.where(better, divided(top_sum, bottom), scale)
        best = np.where(better, scale * top_sum, best)
        np.copyto(kept, numbers, where=better)
        np.copyto(on_grid, problem.grid.numbers[tuples] >= 0, where=better)
    return _refined(problem, how, kept, on_grid, scale)


def _refined(
    problem: Problem, how: Search, kept: Array, on_grid: Array, scale: Array
) -> tuple[Array, Array]:
    """Choose the tuples again at the scale that was found, and fit the scale to them once more."""
    where = _AGAIN[how.again](~on_grid) & (scale > 0)
    tuples = problem.rounded(divided(ONE, scale))
    numbers = np.where(where, problem.placed(tuples, scale, where), kept)
    top_sum, bottom = problem.fitted(numbers)
    changed = where.any(axis=0) & (bottom > 0)
    return numbers, np.where(changed, divided(top_sum, bottom), scale)


_AGAIN: dict[str, Callable[[Array], Array]] = {
    "outside": lambda outside: outside,
    "touched": lambda outside: np.broadcast_to(outside.any(axis=0), outside.shape),
    "all": np.ones_like,
}


def spread(values: Array, factor: int) -> Array:
    """`factor` times the mean square of each block, f32 [blocks, 1]."""
    squares = np.ascontiguousarray(np.square(values).T)
    mean: Array = (np.float32(factor) * total(squares)) / np.float32(values.shape[1])
    return mean[:, None]


def weighed(values: Array, importance: Array, spread_of_block: Array) -> Array:
    """Weights of squared errors: importance grows with magnitude, [blocks, elements]."""
    weight: Array = importance * np.sqrt(spread_of_block + np.square(values))
    return weight


def own_weights(values: Array, importance: Array | None) -> Array:
    """Weights of squared errors; without an importance they are the squares of the values."""
    if importance is None:
        squares: Array = np.square(values)
        return squares
    return weighed(values, importance, spread(values, 2))


def needed(dtype: DType, importance: Array | None) -> Array:
    """The importance of the values. Raises OptionError where there is none."""
    if importance is None:
        raise OptionError(
            f"cpu: {dtype.name} cannot be encoded without importance, its grid is too coarse; give "
            "the importance of each column, or choose a type such as iq2_s or q2_K"
        )
    return importance


def quantised(scale: Array, codes: int) -> tuple[Array, Array]:
    """Scales [blocks, groups] as codes below `codes`, uint8, of odd multiples of a unit [blocks].

    The largest scale of a block takes the last code, which decides the unit.
    """
    unit = scale.max(axis=1) / np.float32(2 * codes - 1)
    odd = divided(ONE, unit)[:, None] * scale
    odd -= ONE
    odd *= HALF
    return np.fmin(np.fmax(np.rint(odd), 0), codes - 1).astype(np.uint8), unit


def by_block(found: Array, blocks: int) -> Array:
    """What was found for groups, [per group, groups], block after block: [blocks, per block]."""
    return np.ascontiguousarray(found.T).reshape(blocks, -1)


def signs_and_scales(signs: Array, scales: Array) -> Array:
    """Of each 32 values four times 7 bits of signs, then 4 bits of scale: uint8 [blocks, 32].

    The eighth sign of each eight follows from the others: their number is even.
    """
    blocks = len(signs)
    words = scales.astype(np.uint32) << 28
    for k in range(4):
        words |= (signs[:, k::4] & np.uint32(127)) << (7 * k)
    return as_bytes(words, "<u4").reshape(blocks, -1)
