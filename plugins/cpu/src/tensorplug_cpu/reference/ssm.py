"""State space models: convolution over time, selective scan."""

# NumPy types most of what its functions return as Any.
# mypy: no-warn-return-any

from collections.abc import Sequence

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference.rows import checked_ids, rows_of
from tensorplug_cpu.reference.table import Params, values


@values("ssm_conv")
def ssm_conv(_: Params, x: Array, kernel: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[-1], axis=-1)
    return np.einsum("bscti,ci->bstc", windows, kernel[0, 0])


@values("ssm_scan")
def ssm_scan(
    p: Params, s: Array, x: Array, dt: Array, a: Array, b: Array, c: Array, ids: Array
) -> Array:
    heads, copies = x.shape[2], x.shape[2] // b.shape[2]
    group = np.arange(heads) // copies
    start = rows_of(s, checked_ids("ssm_scan", ids[0, 0, 0], len(s)))
    state, y, states = start, np.zeros_like(x), []
    for t in range(x.shape[1]):
        delta = np.logaddexp(0, dt[0, :, t])
        fed = np.einsum("sh,shd,shn->shdn", delta, x[:, t], b[:, t, group])
        state = state * np.exp(delta[:, :, None] * a[0, 0])[:, :, None] + fed
        y[:, t] = np.einsum("shdn,shn->shd", state, c[:, t, group])
        states.append(state)
    return packed(y, states or [start], p["K"])


def packed(outputs: Array, states: Sequence[Array], slots: int) -> Array:
    """Outputs in one vector with the last states, the newest first; zeros where there are none."""
    kept = [states[-1 - i] if i < len(states) else np.zeros_like(states[0]) for i in range(slots)]
    return np.concatenate([part.ravel() for part in (outputs, *kept)])
