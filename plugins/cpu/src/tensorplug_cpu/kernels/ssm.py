"""State space models: convolution over time, selective scan."""

from collections.abc import Sequence

import numpy as np

from tensorplug_cpu.kernels.ids import RowIds
from tensorplug_cpu.kernels.snapshots import Snapshots
from tensorplug_cpu.kernels.sums import sum_of_products
from tensorplug_cpu.layout import viewed
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step


@kernel("ssm_conv")
def ssm_conv(task: Task) -> Sequence[Step]:
    """One product for each step that the kernel looks back."""
    x, weights = task["x"].array, task["kernel"].array
    tokens = task.out.array.shape[2]
    pairs = [
        (x[..., i : i + tokens].swapaxes(-1, -2), weights[:, :, None, :, i])
        for i in range(weights.shape[3])
    ]
    return sum_of_products(task, pairs, task.out.array)


@kernel("ssm_scan")
def ssm_scan(task: Task) -> Sequence[Step]:
    """One pass over the states for each token, all heads and sequences at once."""
    ids = RowIds(task)
    return [ids, _Scan(task, ids)]


class _Scan:
    """A call scans. States are [sequences, groups, heads of a group * dim, n]."""

    def __init__(self, task: Task, ids: RowIds) -> None:
        self._ids, self._starts = ids, task["s"].array
        self._x, self._dt = task["x"].array, task["dt"].array[0]
        self._a = task["a"].array[0, 0]
        sequences, self._tokens, heads, dim = self._x.shape
        b, c = task["b"].array, task["c"].array
        groups, n = b.shape[2:]
        self._b, self._c = b[..., None, :], c[..., None]
        self._kept = Snapshots(task, (sequences, heads, dim, n))
        grouped = (sequences, groups, heads // groups * dim)
        self._state = self._kept.state.reshape(*grouped, n)
        by_token = (sequences, self._tokens, *grouped[1:], 1)
        self._y = self._kept.outputs.reshape(by_token)
        self._delta = task.scratch(self._dt.shape)
        self._fed = task.scratch(self._x.shape)
        self._inputs = viewed(self._fed, by_token)
        self._decay = task.scratch((sequences, *self._a.shape))
        self._change = task.scratch(self._state.shape)

    def __call__(self) -> None:
        self._kept.begin(self._tokens)
        self._kept.state[...] = self._starts[self._ids.values]
        self._ids.clear(self._kept.state)
        np.logaddexp(self._dt, np.float32(0), self._delta)  # softplus, without overflow
        np.multiply(self._x, self._delta[..., None], self._fed)
        for t in range(self._tokens):
            self._advance(t)
            np.matmul(self._state, self._c[:, t], self._y[:, t])
            self._kept.keep(self._tokens - 1 - t)

    def _advance(self, t: int) -> None:
        np.multiply(self._delta[:, t, :, None], self._a, self._decay)
        np.exp(self._decay, self._decay)
        np.multiply(self._kept.state, self._decay[:, :, None], self._kept.state)
        np.multiply(self._inputs[:, t], self._b[:, t], self._change)
        np.add(self._state, self._change, self._state)
