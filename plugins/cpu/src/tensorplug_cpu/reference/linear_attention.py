"""Linear attention, one sequence and head after another. States are [of k, of v] throughout."""

# NumPy types most of what its functions return as Any.
# mypy: no-warn-return-any

import math
from collections.abc import Callable, Sequence

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference.ssm import packed
from tensorplug_cpu.reference.table import Params, values

Update = Callable[[Array, int, int], tuple[Array, Array]]
"""From a state and the numbers of token and head to the next state and the output."""


def _attended(first: Array, states: Array, update: Update) -> tuple[Array, Array]:
    """Rows of outputs and of last states; `first` is some source [1, tokens, heads, size]."""
    _, tokens, heads, _ = first.shape
    length = tokens // len(states)
    y, last = np.zeros_like(first), states.copy()
    for s, h in np.ndindex(len(states), heads):
        for t in range(s * length, (s + 1) * length):
            last[s, h], y[0, t, h] = update(last[s, h], t, h)
    return y, last


def _states(state: Array, like: Array) -> Array:
    _, _, heads, size = like.shape
    return state.reshape(-1, heads, size, size)


def _rows(y: Array, states: Sequence[Array], slots: int = 1) -> Array:
    """What is packed, in rows of all heads."""
    return packed(y, states, slots).reshape(1, 1, -1, y.shape[2] * y.shape[3])


@values("rwkv_wkv6")
def rwkv_wkv6(_: Params, k: Array, v: Array, r: Array, tf: Array, td: Array, state: Array) -> Array:
    def update(s: Array, t: int, h: int) -> tuple[Array, Array]:
        new = np.outer(k[0, t, h], v[0, t, h])
        y = r[0, t, h] @ (s + tf[0, 0, h][:, None] * new)
        return td[0, t, h][:, None] * s + new, y

    y, last = _attended(k, _states(state, k), update)
    return _rows(y, [last])


@values("gated_linear_attn")
def gated_linear_attn(p: Params, k: Array, v: Array, q: Array, g: Array, state: Array) -> Array:
    def update(s: Array, t: int, h: int) -> tuple[Array, Array]:
        s = g[0, t, h][:, None] * s + np.outer(k[0, t, h], v[0, t, h])
        return s, p["scale"] * (q[0, t, h] @ s)

    y, last = _attended(k, _states(state, k), update)
    return _rows(y, [last])


@values("rwkv_wkv7")
def rwkv_wkv7(
    _: Params, r: Array, w: Array, k: Array, v: Array, a: Array, b: Array, state: Array
) -> Array:
    def update(s: Array, t: int, h: int) -> tuple[Array, Array]:
        change = np.outer(k[0, t, h], v[0, t, h]) + np.outer(b[0, t, h], a[0, t, h] @ s)
        s = w[0, t, h][:, None] * s + change
        return s, r[0, t, h] @ s

    y, last = _attended(r, _states(state, r).swapaxes(-1, -2), update)
    return _rows(y, [last.swapaxes(-1, -2)])


@values("gated_delta_net")
def gated_delta_net(
    p: Params, q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array
) -> Array:
    sequences, tokens, heads, size = v.shape
    now, y, states = state.swapaxes(-1, -2).copy(), np.zeros_like(v), []
    for t in range(tokens):
        for n, h in np.ndindex(sequences, heads):
            q_now, k_now = (x[n // (sequences // x.shape[0]), t, h % x.shape[2]] for x in (q, k))
            s = np.exp(g[n, t, h])[:, None] * now[n, h]
            s += np.outer(k_now, beta[n, t, h] * (v[n, t, h] - k_now @ s))
            now[n, h], y[n, t, h] = s, q_now @ s / math.sqrt(size)
        states.append(now.swapaxes(-1, -2).copy())
    return _rows(y, states or [state], p["K"])
