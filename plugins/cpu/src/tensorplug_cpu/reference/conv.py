"""Convolutions, tap by tap: every element of a window against its element of the filter."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference.table import Params, values

Place = tuple[int, ...]


def taps(
    p: Params, kernel: Sequence[int], x: Sequence[int]
) -> Iterator[tuple[Place, Place, Place]]:
    """Window, place in the window and place in `x`, for all that are inside `x`.

    Sizes and places are of the dimensions over which windows slide, slowest first.
    """
    names = range(len(x))[::-1]  # s0, p0 and d0 are those of the fastest dimension
    steps, pads, dilations = ([p[f"{letter}{n}"] for n in names] for letter in "spd")
    counts = [
        (size + 2 * pad - dilation * (length - 1) - 1) // step + 1
        for size, length, step, pad, dilation in zip(x, kernel, steps, pads, dilations, strict=True)
    ]
    for window in itertools.product(*map(range, counts)):
        for tap in itertools.product(*map(range, kernel)):
            at = tuple(
                w * step + t * dilation - pad
                for w, t, step, pad, dilation in zip(
                    window, tap, steps, pads, dilations, strict=True
                )
            )
            if all(0 <= place < size for place, size in zip(at, x, strict=True)):
                yield window, tap, at


def window_shape(p: Params, kernel: Sequence[int], x: Sequence[int]) -> tuple[int, ...]:
    """How many windows there are along each dimension, slowest first."""
    found = []
    for dim, (length, size) in enumerate(zip(kernel[::-1], x[::-1], strict=True)):
        last = size + 2 * p[f"p{dim}"] - p[f"d{dim}"] * (length - 1)
        found.append(len(range(0, last, p[f"s{dim}"])))
    return tuple(found[::-1])


def places_first(x: Array) -> Array:
    """Look at [a, b, ...] as [..., a, b]."""
    return np.moveaxis(x, (0, 1), (-2, -1))


def places_last(x: Array) -> Array:
    """Look at [..., a, b] as [a, b, ...]."""
    return np.moveaxis(x, (-2, -1), (0, 1))


def filtered(p: Params, kernel: Array, x: Array) -> Array:
    """Filters [o, c, ...] over images [n, c, ...]: [n, o, ...]."""
    sizes = kernel.shape[2:], x.shape[2:]
    pixels, weights = places_first(x), places_first(kernel)
    y = np.zeros((*window_shape(p, *sizes), x.shape[0], kernel.shape[0]))
    for window, tap, at in taps(p, *sizes):
        y[window] += pixels[at] @ weights[tap].T
    return places_last(y)


@values("conv_2d")
def conv_2d(p: Params, kernel: Array, x: Array) -> Array:
    return filtered(p, kernel, x)


@values("conv_3d")
def conv_3d(p: Params, kernel: Array, x: Array) -> Array:
    channels = p["n_channels"]
    y = filtered(
        p,
        kernel.reshape(p["n_channels_out"], channels, *kernel.shape[1:]),
        x.reshape(p["n_batch"], channels, *x.shape[1:]),
    )
    return y.reshape(-1, *y.shape[2:])


@values("conv_2d_dw")
def conv_2d_dw(p: Params, kernel: Array, x: Array) -> Array:
    sizes = kernel.shape[2:], x.shape[2:]
    pixels, weights = places_first(x), places_first(kernel)
    y = np.zeros((*window_shape(p, *sizes), *x.shape[:2]))
    for window, tap, at in taps(p, *sizes):
        y[window] += pixels[at] * weights[tap][:, 0]
    return places_last(y)


@values("conv_transpose_1d")
def conv_transpose_1d(p: Params, kernel: Array, x: Array) -> Array:
    filters, length = kernel.shape[2:]
    last = (x.shape[3] - 1) * p["s0"] + (length - 1) * p["d0"] + 1 - p["p0"]
    y = np.zeros((filters, last))
    for u in range(x.shape[3]):
        for i in range(length):
            t = u * p["s0"] + i * p["d0"] - p["p0"]
            if 0 <= t < last:
                y[:, t] += x[0, 0, :, u] @ kernel[0, :, :, i]
    return y[None, None, :, : last - p["p0"]]


@values("conv_transpose_2d")
def conv_transpose_2d(p: Params, kernel: Array, x: Array) -> Array:
    _, filters, high, wide = kernel.shape
    batch, _, rows, columns = x.shape
    down, across = p["s1"], p["s0"]
    y = np.zeros((batch, filters, (rows - 1) * down + high, (columns - 1) * across + wide))
    for v in range(rows):
        for u in range(columns):
            spread = np.einsum("nc,cohw->nohw", x[:, :, v, u], kernel)
            y[:, :, v * down : v * down + high, u * across : u * across + wide] += spread
    return y
