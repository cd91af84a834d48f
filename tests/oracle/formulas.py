"""Direct formulas for ops that ggml has no kernel for, or none that it tests itself.

A formula gets our parameters and the values of the sources, float64 in four dimensions, slowest
first, and returns those of the result.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Formula = Callable[[Mapping[str, Any], list[Array]], Array]
FORMULAS: dict[str, tuple[str, Formula]] = {}
"""The formula of an op, and what it is called in the table."""


def formula(peer: str, *ops: str) -> Callable[[Formula], Formula]:
    """Register the decorated function for `ops`."""

    def register(function: Formula) -> Formula:
        FORMULAS.update(dict.fromkeys(ops, (peer, function)))
        return function

    return register


@formula("the function itself", "map_custom1", "map_custom2", "map_custom3", "custom")
def _called(params: Mapping[str, Any], sources: list[Array]) -> Array:
    shape = params.get("ne", sources[0].shape[::-1] if sources else ())[::-1]
    result = np.zeros(shape)
    flat = "rank" in params and params["rank"] < 2
    params["function"](result.ravel() if flat else result, *sources)
    return result


STEPS = "complex-step derivative"
STEP = 1e-30
"""Of a derivative by a complex step there is no cancellation, so it may be this small."""


@formula(STEPS, "flash_attn_back")
def _flash_attn_back(params: Mapping[str, Any], sources: list[Array]) -> Array:
    *operands, grad = sources
    found = []
    for i, operand in enumerate(operands):
        moved = operand.astype(complex)
        for at in np.ndindex(operand.shape):
            moved[at] += 1j * STEP
            q, k, v = (*operands[:i], moved, *operands[i + 1 :])
            found.append(np.sum(grad * _attended(q, k, v, params["masked"])).imag / STEP)
            moved[at] -= 1j * STEP
        found += [0.0] * (-len(found) % 4)
    return np.reshape(found, (1, 1, 1, -1))


def _attended(q: Array, k: Array, v: Array, masked: bool) -> Array:
    """Attention of q [.., tokens, size] to k [.., positions, size] and v [.., width, positions]."""
    for axis in (0, 1):
        k, v = (np.repeat(x, q.shape[axis] // x.shape[axis], axis) for x in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    tokens, positions = scores.shape[-2:]
    if masked:
        hidden = np.arange(positions) > np.arange(tokens)[:, None] + positions - tokens
        scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.real.max(-1, keepdims=True, initial=-np.inf))
    return weights / weights.sum(-1, keepdims=True) @ np.swapaxes(v, -1, -2)


@formula("sum over windows", "im2col_back")
def _im2col_back(params: Mapping[str, Any], sources: list[Array]) -> Array:
    """Each gradient of a window is added where its element came from."""
    grad, kernel = sources
    width, height, channels, images = (*params["ne"], 1, 1, 1)[:4]
    kh, kw = kernel.shape[2:]
    s0, s1, p0, p1, d0, d1 = (params[name] for name in ("s0", "s1", "p0", "p1", "d0", "d1"))
    if not params["is_2d"]:
        height, channels, images = 1, height, channels
        kh, kw, s1, p1, d1 = 1, kernel.shape[3], 1, 0, 1
    across, down = grad.shape[2], grad.shape[1] if params["is_2d"] else 1
    given = grad.reshape(images, down, across, channels, kh, kw)
    found = np.zeros((images, channels, height, width))
    for n, v, u, c, j, i in np.ndindex(given.shape):
        row, column = v * s1 + j * d1 - p1, u * s0 + i * d0 - p0
        if 0 <= row < height and 0 <= column < width:
            found[n, c, row, column] += given[n, v, u, c, j, i]
    return found


@formula("sum over taps", "conv_transpose_1d")
def _conv_transpose_1d(params: Mapping[str, Any], sources: list[Array]) -> Array:
    """Each element of the signal lays down the kernel, its taps `d0` apart."""
    kernel, x = sources[0][0], sources[1][0, 0]
    channels, filters, taps = kernel.shape
    length = x.shape[1]
    stride, crop, dilation = (params[name] for name in ("s0", "p0", "d0"))
    found = np.zeros((filters, (length - 1) * stride + (taps - 1) * dilation + 1))
    for c, u, i in np.ndindex(channels, length, taps):
        found[:, u * stride + i * dilation] += kernel[c, :, i] * x[c, u]
    return found[:, crop : found.shape[1] - crop]


@formula("a walk over windows", "pool_2d_back")
def _pool_2d_back(params: Mapping[str, Any], sources: list[Array]) -> Array:
    """The gradient of a window goes to its first largest element, or in equal parts to all.

    Where all is minus infinity there is no largest.
    """
    grad, x = sources
    k0, k1, s0, s1, p0, p1 = (int(params[name]) for name in ("k0", "k1", "s0", "s1", "p0", "p1"))
    found = np.zeros_like(x)
    for n, c, v, u in np.ndindex(grad.shape):
        top, left = v * s1 - p1, u * s0 - p0
        window = (
            n,
            c,
            slice(max(top, 0), max(top + k1, 0)),
            slice(max(left, 0), max(left + k0, 0)),
        )
        part = found[window]
        if params["kind"] == "avg":
            part += grad[n, c, v, u] / (k0 * k1)
        elif np.any(x[window] > -np.inf):
            part[np.unravel_index(np.argmax(x[window]), part.shape)] += grad[n, c, v, u]
    return found


@formula("NumPy", "add1")
def _add1(_params: Mapping[str, Any], sources: list[Array]) -> Array:
    a, b = sources
    return a + b.item()


@formula("NumPy", "diag_mask_zero")
def _diag_mask_zero(params: Mapping[str, Any], sources: list[Array]) -> Array:
    (x,) = sources
    return np.where(np.tri(*x.shape[-2:], k=params["n_past"], dtype=bool), x, 0)


@formula("NumPy", "win_part")
def _win_part(params: Mapping[str, Any], sources: list[Array]) -> Array:
    image, w = sources[0][0], params["w"]
    height, width, channels = image.shape
    high, wide = -(-height // w), -(-width // w)
    padded = np.pad(image, [(0, high * w - height), (0, wide * w - width), (0, 0)])
    return padded.reshape(high, w, wide, w, channels).swapaxes(1, 2)


@formula("NumPy", "win_unpart")
def _win_unpart(params: Mapping[str, Any], sources: list[Array]) -> Array:
    w, width, height = (params[name] for name in ("w", "w0", "h0"))
    high, wide = -(-height // w), -(-width // w)
    windows = sources[0].reshape(high, wide, w, w, -1)
    return windows.swapaxes(1, 2).reshape(high * w, wide * w, -1)[:height, :width]


@formula("NumPy", "get_rel_pos")
def _get_rel_pos(params: Mapping[str, Any], sources: list[Array]) -> Array:
    query, key = np.ogrid[: params["qh"], : params["kh"]]
    return sources[0][0, 0][query - key + params["kh"] - 1]


@formula("NumPy", "add_rel_pos")
def _add_rel_pos(_params: Mapping[str, Any], sources: list[Array]) -> Array:
    x, by_column, by_row = sources
    heads, rows, columns, keys = by_column.shape
    scores = x.reshape(heads, rows, columns, keys, keys)
    return scores + by_row[..., :, None] + by_column[..., None, :]
