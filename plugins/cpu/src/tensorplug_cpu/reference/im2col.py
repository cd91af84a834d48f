"""Windows laid side by side as rows, and summed back, tap by tap."""

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference.conv import places_first, places_last, taps, window_shape
from tensorplug_cpu.reference.table import Params, values


def rows_of_windows(p: Params, kernel: tuple[int, ...], x: Array) -> Array:
    """Images [n, c, ...] to [n, ..., c * taps]; the taps of a channel one after another."""
    sizes, pixels, dims = (kernel, x.shape[2:]), places_first(x), len(kernel)
    y = np.zeros((*window_shape(p, *sizes), *kernel, *x.shape[:2]))
    for window, tap, at in taps(p, *sizes):
        y[(*window, *tap)] = pixels[at]
    # [windows, taps, n, c] to [n, windows, c, taps]
    rows = np.moveaxis(y, (-2, -1), (0, dims + 1))
    return rows.reshape(*rows.shape[: dims + 1], -1)


@values("im2col")
def im2col(p: Params, kernel: Array, x: Array) -> Array:
    if p["is_2d"]:
        return rows_of_windows(p, kernel.shape[2:], x)
    return rows_of_windows(p, kernel.shape[3:], x[0])[None]


@values("im2col_3d")
def im2col_3d(p: Params, kernel: Array, x: Array) -> Array:
    volumes = x.reshape(len(x) // p["n_channels"], p["n_channels"], *x.shape[1:])
    y = rows_of_windows(p, kernel.shape[1:], volumes)
    return y.reshape(-1, *y.shape[2:])


@values("im2col_back")
def im2col_back(p: Params, grad: Array, kernel: Array) -> Array:
    ne = (*p["ne"], 1, 1, 1)[:4]
    # Signals [n, c, l] are [n, c, l], images [n, c, h, w], in the order of NumPy.
    shape = ne[::-1] if p["is_2d"] else ne[2::-1]
    window = kernel.shape[2:] if p["is_2d"] else kernel.shape[3:]
    x = np.zeros((*shape[2:], *shape[:2]))
    dims = len(window)
    lead = grad.shape[:-1] if p["is_2d"] else grad.shape[1:-1]
    pieces = grad.reshape(*lead, shape[1], *window)
    # [n, windows, c, taps] to [windows, taps, n, c]
    pieces = np.moveaxis(pieces, (0, dims + 1), (-2, -1))
    for at_window, tap, at in taps(p, window, shape[2:]):
        x[at] += pieces[(*at_window, *tap)]
    return places_last(x).reshape(ne[::-1])


@values("col2im_1d")
def col2im_1d(p: Params, x: Array) -> Array:
    steps, step, channels = x.shape[2], p["s0"], p["oc"]
    pieces = x.reshape(steps, channels, -1)
    length = pieces.shape[2]
    whole = np.zeros((channels, (steps - 1) * step + length))
    for t in range(steps):
        whole[:, t * step : t * step + length] += pieces[t]
    return whole[None, None, :, p["p0"] : whole.shape[1] - p["p0"]]
