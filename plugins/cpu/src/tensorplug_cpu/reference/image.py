"""Images resized, padded, rolled: each element from those it is made of."""

# NumPy types most of what its functions return as Any.
# mypy: no-warn-return-any

import math

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference.table import Params, values


@values("upscale")
def upscale(p: Params, x: Array) -> Array:
    shape = p["ne"][::-1]
    planes = np.ix_(*(_nearest(shape[i], x.shape[i]) for i in (0, 1)))
    picked = x[planes[0][..., None, None], planes[1][..., None, None]].reshape(
        shape[0], shape[1], *x.shape[2:]
    )
    rows, columns = (_weights(p, shape[i], x.shape[i]) for i in (2, 3))
    if p["antialias"]:
        rows, columns = (w / w.sum(axis=1, keepdims=True) for w in (rows, columns))
    return _weighed(_weighed(picked, columns).swapaxes(2, 3), rows).swapaxes(2, 3)


def _weighed(x: Array, weights: Array) -> Array:
    """Sums along the last axis by weights [large, small]; what has none may be infinite or NaN."""
    y = np.zeros((*x.shape[:-1], len(weights)))
    for i, shares in enumerate(weights):
        taken = np.flatnonzero(shares)
        y[..., i] = x[..., taken] @ shares[taken]
    return y


def _nearest(large: int, small: int) -> Array:
    factor = np.float32(large) / np.float32(small)
    return np.array([_taken(i, factor, small) for i in range(large)])


def _taken(i: int, factor: np.float32, small: int) -> int:
    # Which element is the nearest is a jump: the rounding of f32 belongs to the definition.
    return min(int(np.float32(i) / factor), small - 1)


def _weights(p: Params, large: int, small: int) -> Array:
    """How much of each element each new one takes: [large, small]."""
    factor, shift = np.float32(large) / np.float32(small), 0.5
    if p["align_corners"]:
        shift = 0.0
        if large > 1 and small > 1:
            factor = np.float32(large - 1) / np.float32(small - 1)
    weights = np.zeros((large, small))
    for i in range(large):
        if p["mode"] == "nearest":
            weights[i, _taken(i, factor, small)] = 1
        elif p["antialias"]:
            weights[i] = _triangle(i, factor, np.float32(shift), small)
        else:
            at = (i + shift) / float(factor) - shift
            for j, weight in _SHARES[p["mode"]](at, small):
                weights[i, min(max(j, 0), small - 1)] += weight
    return weights


def _bilinear(at: float, small: int) -> list[tuple[int, float]]:
    first = min(max(math.floor(at), 0), small - 1)
    # Beyond the ends an element counts for itself.
    rest = min(max(at - first, 0.0), 1.0)
    return [(first, 1 - rest), (first + 1, rest)]


def _bicubic(at: float, _small: int) -> list[tuple[int, float]]:
    first, a = math.floor(at), -0.75
    found = []
    for j in range(-1, 3):
        d = abs(at - first - j)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        found.append((first + j, near if d <= 1 else far))
    return found


_SHARES = {"bilinear": _bilinear, "bicubic": _bicubic}


def _triangle(i: int, factor: np.float32, shift: np.float32, small: int) -> Array:
    """A triangle that is as wide as the new element where that is wider than the old ones.

    Its ends are whole numbers, found in f32: they jump too.
    """
    support = max(np.float32(1), np.float32(1) / factor)
    centre = (np.float32(i) + shift) / factor
    weights = np.zeros(small)
    first, last = max(0, int(centre - support + shift)), int(centre + support + shift)
    for j in range(first, min(small, last)):
        weights[j] = max(0.0, 1 - abs(j - float(centre) + float(shift)) / float(support))
    return weights


@values("pad")
def pad(p: Params, x: Array) -> Array:
    pairs = [p["pads"][2 * i : 2 * i + 2] for i in (3, 2, 1, 0)]
    if not p["circular"]:
        return np.pad(x, pairs)
    for axis, (left, right) in enumerate(pairs):
        n = x.shape[axis]
        x = np.take(x, [i % n for i in range(-left, n + right)], axis)
    return x


@values("pad_reflect_1d")
def pad_reflect_1d(p: Params, x: Array) -> Array:
    return np.pad(x, [(0, 0), (0, 0), (0, 0), (p["p0"], p["p1"])], mode="reflect")


@values("roll")
def roll(p: Params, x: Array) -> Array:
    y = np.empty(x.shape)
    for index in np.ndindex(x.shape):
        moved = (i + s for i, s in zip(index, p["shifts"][::-1], strict=True))
        y[tuple(i % n for i, n in zip(moved, x.shape, strict=True))] = x[index]
    return y


@values("timestep_embedding")
def timestep_embedding(p: Params, x: Array) -> Array:
    times, half = x.reshape(-1), p["dim"] // 2
    y = np.zeros((1, 1, len(times), p["dim"]))
    for i, time in enumerate(times):
        for j in range(half):
            angle = time * math.exp(-math.log(p["max_period"]) * j / half)
            y[0, 0, i, j], y[0, 0, i, j + half] = np.cos(angle), np.sin(angle)
    return y
