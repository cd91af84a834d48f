"""Windows of images and relative positions, element by element."""

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference.table import Params, values


@values("win_part")
def win_part(p: Params, x: Array) -> Array:
    w, image = p["w"], x[0]
    across = -(-image.shape[1] // w)
    down = -(-image.shape[0] // w)
    y = np.zeros((across * down, w, w, image.shape[2]))
    for row, column in np.ndindex(image.shape[:2]):
        window = row // w * across + column // w
        y[window, row % w, column % w] = image[row, column]
    return y


@values("win_unpart")
def win_unpart(p: Params, x: Array) -> Array:
    w, across = p["w"], -(-p["w0"] // p["w"])
    y = np.zeros((1, p["h0"], p["w0"], x.shape[3]))
    for row, column in np.ndindex(y.shape[1:3]):
        y[0, row, column] = x[row // w * across + column // w, row % w, column % w]
    return y


@values("get_rel_pos")
def get_rel_pos(p: Params, x: Array) -> Array:
    q, k = np.arange(p["qh"])[:, None], np.arange(p["kh"])
    gathered: Array = x[0, 0][p["kh"] - 1 - k + q][None]
    return gathered


@values("add_rel_pos")
def add_rel_pos(_: Params, x: Array, pw: Array, ph: Array) -> Array:
    n = pw.shape[-1]
    y = x.copy()
    across, down = (part.reshape(part.shape[0], -1, n) for part in (pw, ph))
    for i in range(n):
        for j in range(n):
            y[0, :, :, i * n + j] += down[:, :, i] + across[:, :, j]
    return y
