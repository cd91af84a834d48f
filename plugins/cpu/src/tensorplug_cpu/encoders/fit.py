"""Searches for the scale, or scale and minimum, with which codes come nearest to values.

Values and weights are f32 [elements, ...]: a fit goes over axis 0, for all other places at once.
All try a few scales around the obvious one, choose codes for each by rounding, compute the best
scale for those codes by least squares, and keep what has the least weighted error.
"""

from typing import NamedTuple

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.encoders.common import TINY, divided, farthest, total

PASSES = 5
"""How often single codes are improved, one after the other, until none changes."""


class Trials(NamedTuple):
    """Which scales to try for codes 0 to `top`: those that spread the values over `top` + `first`,
    then `step` more codes, `steps` times. `absolute`: errors count as they are, not squared."""

    top: int
    first: float
    step: float
    steps: int
    absolute: bool = False


class Affine(NamedTuple):
    """Codes, f32 of the shape of the values; `scale * codes - below` are nearest to the values."""

    codes: Array
    scale: Array
    below: Array


def fit_affine(x: Array, weights: Array, trials: Trials) -> Affine:
    """Fit codes from 0 on with a scale and a minimum that is not positive."""
    low, high = np.take_along_axis(x, x.argmin(axis=0)[None], axis=0)[0], x.max(axis=0)
    low[low > 0] = 0  # zero and minus zero stay what they are, for they are stored
    flat = high <= low
    high = np.where(flat, low + 1, high)
    sum_w, sum_x = total(weights), total(weights * x)
    inverse = np.float32(trials.top) / (high - low)
    scale, codes = 1 / inverse, _rounded(x, low, inverse, trials.top)
    error = _affine_error(x, weights, codes, (scale, low), trials)
    for i in range(trials.steps + 1):
        spread = np.float32(trials.first) + np.float32(trials.step) * np.float32(i)
        inverse = (spread + np.float32(trials.top)) / (high - low)
        tried = _rounded(x, low, inverse, trials.top)
        slope, offset, solvable = _least_squares(x, weights, tried, (sum_w, sum_x))
        missed = _affine_error(x, weights, tried, (slope, offset), trials)
        better = solvable & (missed < error)
        np.copyto(codes, tried, where=better)
        np.copyto(error, missed, where=better)
        np.copyto(scale, slope, where=better)
        low = np.where(better, offset, low)
    scale[flat] = 0
    codes[:, flat] = 0
    return Affine(codes, scale, -low)


def _rounded(x: Array, low: Array, inverse: Array, top: int) -> Array:
    codes = x - low
    codes *= inverse
    np.rint(codes, codes)
    clipped: Array = np.clip(codes, 0, top, out=codes)
    return clipped


def _least_squares(
    x: Array, weights: Array, codes: Array, sums: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """Scale, minimum, and whether there is a solution."""
    sum_w, sum_x = sums
    weighted = weights * codes
    sum_l = total(weighted)
    sum_xl = total(weighted * x)
    weighted *= codes
    sum_l2 = total(weighted)
    determinant = sum_w * sum_l2 - sum_l * sum_l
    slope = (sum_w * sum_xl - sum_x * sum_l) / determinant
    offset = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
    positive = offset > 0
    slope = np.where(positive, sum_xl / sum_l2, slope)
    return slope, np.where(positive, np.float32(0), offset), determinant > 0


def _affine_error(
    x: Array, weights: Array, codes: Array, line: tuple[Array, Array], trials: Trials
) -> Array:
    scale, low = line
    error = codes * scale
    error += low
    error -= x
    (np.abs if trials.absolute else np.square)(error, out=error)
    error *= weights
    return total(error)


def fit_signed(x: Array, weights: Array, half: int) -> tuple[Array, Array]:
    """Fit codes -half to half - 1, returned from 0 on, with a scale that may be negative."""
    peak = farthest(x)
    none = np.abs(peak) < TINY
    peak = np.where(none, np.float32(1), peak)
    weighted = weights * x

    def sums(inverse: Array) -> tuple[Array, Array]:
        codes = _signed_codes(x, inverse, half)
        squares = weights * codes
        squares *= codes
        return total(weighted * codes), total(squares)

    chosen = -np.float32(half) / peak
    sum_xl, sum_l2 = sums(chosen)
    scale = divided(sum_xl, sum_l2)
    best = scale * sum_xl
    for step in (*range(-9, 0), *range(1, 10)):
        inverse = -(np.float32(half) + np.float32(0.1) * np.float32(step)) / peak
        sum_xl, sum_l2 = sums(inverse)
        better = (sum_l2 > 0) & (sum_xl * sum_xl > best * sum_l2)
        np.copyto(scale, sum_xl / sum_l2, where=better)
        np.copyto(best, scale * sum_xl, where=better)
        np.copyto(chosen, inverse, where=better)
    codes = _signed_codes(x, chosen, half) + np.float32(half)
    scale[none] = 0
    codes[:, none] = 0
    return codes, scale


def _signed_codes(x: Array, inverse: Array, half: int) -> Array:
    codes = x * inverse
    np.rint(codes, codes)
    clipped: Array = np.clip(codes, -half, half - 1, out=codes)
    return clipped


def fit_positive(x: Array, weights: Array, top: int) -> tuple[Array, Array]:
    """Fit codes 0 to `top` to values that are not negative."""
    peak = x.max(axis=0)
    none = peak < TINY
    peak = np.where(none, np.float32(1), peak)

    def error_of(inverse: Array) -> Array:
        missed = x - _positive_codes(x, inverse, top) * (1 / inverse)
        return total(weights * missed * missed)

    chosen = np.float32(top) / peak
    error = error_of(chosen)
    for step in (*range(-4, 0), *range(1, 5)):
        inverse = (np.float32(0.1) * np.float32(step) + np.float32(top)) / peak
        missed = error_of(inverse)
        better = missed < error
        np.copyto(error, missed, where=better)
        np.copyto(chosen, inverse, where=better)
    codes = _positive_codes(x, chosen, top)
    sums = _refined(x, weights, codes, (0, top))
    scale = divided(*sums)
    scale[none] = 0
    codes[:, none] = 0
    return codes, scale


def _positive_codes(x: Array, inverse: Array, top: int) -> Array:
    codes = np.rint(x * inverse)
    lowered: Array = np.minimum(codes, top, out=codes)
    return lowered


def fit_by_turns(x: Array, half: int) -> tuple[Array, Array]:
    """Like `fit_signed`, weighted by the squares of the values; codes improved one by one."""
    peak = farthest(x)
    none = np.abs(peak) < TINY
    codes = _signed_codes(x, -np.float32(half) / np.where(none, np.float32(1), peak), half)
    scale = divided(*_refined(x, x * x, codes, (-half, half - 1)))
    codes += half
    scale[none] = 0
    codes[:, none] = 0
    return codes, scale


def _refined(
    x: Array, weights: Array, codes: Array, limits: tuple[int, int]
) -> tuple[Array, Array]:
    """Move each of `codes` to where the others want it, in place, while that lowers the error.

    Returns the weighted sums of values times codes and of codes squared: their ratio is the scale.
    """
    weighted = weights * x
    sum_xl, sum_l2 = total(weighted * codes), total(weights * codes * codes)
    for _ in range(PASSES):
        changed = False
        for i, code in enumerate(codes):
            xl = sum_xl - weighted[i] * code
            l2 = sum_l2 - weights[i] * code * code
            wanted = np.clip(np.rint(x[i] * l2 / xl), *limits)
            more_xl, more_l2 = xl + weighted[i] * wanted, l2 + weights[i] * wanted * wanted
            better = (xl > 0) & (l2 > 0) & (wanted != code)
            better &= more_xl * more_xl * sum_l2 > sum_xl * sum_xl * more_l2
            if better.any():
                changed = True
                np.copyto(code, wanted, where=better)
                np.copyto(sum_xl, more_xl, where=better)
                np.copyto(sum_l2, more_l2, where=better)
        if not changed:
            break
    return sum_xl, sum_l2
