"""Windows of images and relative positions, as other shapes of the same arrays."""

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.whole import Params, whole


@whole("win_part")
def win_part(p: Params, x: Array) -> Array:
    """Fill up to whole windows, then put the axes of windows in front."""
    w = p["w"]
    high, wide = (-(-n // w) * w for n in x.shape[1:3])
    full = np.zeros((high, wide, x.shape[3]), np.float32)
    full[: x.shape[1], : x.shape[2]] = x[0]
    parts = full.reshape(high // w, w, wide // w, w, x.shape[3]).swapaxes(1, 2)
    return parts.reshape(-1, w, w, x.shape[3])


@whole("win_unpart")
def win_unpart(p: Params, x: Array) -> Array:
    """The other way round; what was filled up is cut off."""
    w, across, down = p["w"], -(-p["w0"] // p["w"]), -(-p["h0"] // p["w"])
    rows = x.reshape(down, across, w, w, x.shape[3]).swapaxes(1, 2)
    full = rows.reshape(1, down * w, across * w, x.shape[3])
    image: Array = full[:, : p["h0"], : p["w0"]]
    return image


@whole("get_rel_pos")
def get_rel_pos(p: Params, x: Array) -> Array:
    """For each query a window of the table that runs backwards."""
    k = p["kh"]
    windows = np.lib.stride_tricks.sliding_window_view(x[0, 0], k, 0)
    backwards: Array = windows.swapaxes(1, 2)[None, :, ::-1]
    return backwards


@whole("add_rel_pos")
def add_rel_pos(_: Params, x: Array, pw: Array, ph: Array) -> Array:
    """Scores as a matrix of keys: one term along its rows, one along its columns."""
    heads, n = pw.shape[0], pw.shape[-1]
    across, down = pw.reshape(heads, -1, 1, n), ph.reshape(heads, -1, n, 1)
    total: Array = x.reshape(heads, -1, n, n) + down + across
    return total.reshape(x.shape)
