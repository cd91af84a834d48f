"""Images resized, padded, rolled. Resizing weighs a few elements along each dimension."""

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.whole import Params, whole

_F32 = np.float32


@whole("upscale")
def upscale(p: Params, x: Array) -> Array:
    """Planes are picked, rows and columns are weighed."""
    d, c, high, wide = p["ne"][::-1]
    planes = x[_nearest(d, x.shape[0])][:, _nearest(c, x.shape[1])]
    rows, columns = _weights(p, high, x.shape[2]), _weights(p, wide, x.shape[3])
    return _weighed(_weighed(planes, columns).swapaxes(2, 3), rows).swapaxes(2, 3)


def _weighed(x: Array, weights: Array) -> Array:
    """Sums along the last axis by weights [large, small]; what has none may be infinite or NaN."""
    counting = np.argsort(weights == 0, axis=1, kind="stable")
    most = int(np.count_nonzero(weights, axis=1).max())
    total = np.zeros((*x.shape[:-1], len(weights)), _F32)
    for taken in counting.T[:most]:
        weight = weights[np.arange(len(weights)), taken]
        total += np.where(weight == 0, _F32(0), x[..., taken] * weight)
    return total


def _nearest(large: int, small: int) -> Array:
    return _picked(large, small, _F32(large) / _F32(small))


def _picked(large: int, small: int, factor: np.float32) -> Array:
    """Where each new element is taken from; rounding of f32 decides, as in ggml."""
    picked: Array = (np.arange(large, dtype=_F32) / factor).astype(np.intp)
    return np.minimum(picked, small - 1)


def _weights(p: Params, large: int, small: int) -> Array:
    """How much of each element each new one takes: f32 [large, small]."""
    j = np.arange(small)
    factor, shift = _F32(large) / _F32(small), _F32(0 if p["align_corners"] else 0.5)
    if p["align_corners"] and large > 1 and small > 1:
        factor = _F32(large - 1) / _F32(small - 1)
    if p["mode"] == "nearest":
        chosen: Array = (j == _picked(large, small, factor)[:, None]).astype(_F32)
        return chosen
    centre = (np.arange(large, dtype=_F32)[:, None] + shift) / factor
    if p["antialias"]:
        return _widened(centre, shift, max(_F32(1), _F32(1) / factor), j)
    at = centre.astype(np.float64) - shift
    spread = {"bilinear": _tent, "bicubic": _cubic}[p["mode"]]
    # Elements beyond the ends are those at the ends.
    beyond = np.arange(-3, small + 3)
    taken = spread(np.clip(at, 0, small - 1) if p["mode"] == "bilinear" else at, beyond)
    ends = (np.clip(beyond, 0, small - 1)[:, None] == j).astype(np.float64)
    folded: Array = (taken @ ends).astype(_F32)
    return folded


def _widened(centre: Array, shift: np.float32, support: np.float32, j: Array) -> Array:
    """Triangles cut off where f32, rounded, says that they end: that may be before they are 0."""
    near = np.maximum(1 - np.abs(j - centre + shift) / support, 0)
    first = np.maximum(centre - support + shift, 0).astype(int)
    last = np.minimum(centre + support + shift, len(j)).astype(int)
    near = np.where((j >= first) & (j < last), near, 0)
    shares: Array = (near / near.sum(1, keepdims=True)).astype(_F32)
    return shares


def _tent(at: Array, j: Array) -> Array:
    tent: Array = np.maximum(1 - np.abs(at - j), 0)
    return tent


def _cubic(at: Array, j: Array) -> Array:
    """Keys' cubic convolution with a = -0.75."""
    d, a = np.abs(at - j), -0.75
    near = ((a + 2) * d - (a + 3)) * d**2 + 1
    far = a * (((d - 5) * d + 8) * d - 4)
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


@whole("pad")
def pad(p: Params, x: Array) -> Array:
    """Zeros around, or what comes round."""
    pairs = [p["pads"][2 * i : 2 * i + 2] for i in (3, 2, 1, 0)]
    return np.pad(x, pairs, mode="wrap" if p["circular"] else "constant")


@whole("pad_reflect_1d")
def pad_reflect_1d(p: Params, x: Array) -> Array:
    """Mirror images at both ends of rows."""
    left, right = x[..., p["p0"] : 0 : -1], x[..., -2 : -2 - p["p1"] : -1]
    return np.concatenate([left, x, right], axis=-1)


@whole("roll")
def roll(p: Params, x: Array) -> Array:
    """Round and round."""
    return np.roll(x, p["shifts"][::-1], (0, 1, 2, 3))


@whole("timestep_embedding")
def timestep_embedding(p: Params, x: Array) -> Array:
    """Cosines, then sines, then a zero where the dimension is odd."""
    half = p["dim"] // 2
    frequencies = p["max_period"] ** (-np.arange(half) / half)
    angles = x.reshape(1, 1, -1, 1).astype(np.float64) * frequencies
    out = np.zeros((*angles.shape[:3], p["dim"]), _F32)
    out[..., :half], out[..., half : 2 * half] = np.cos(angles), np.sin(angles)
    return out
