"""Linear attention: a matrix for each head, updated token by token, all heads at once."""

import math
from collections.abc import Sequence

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.kernels.snapshots import Snapshots
from tensorplug_cpu.layout import viewed
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step


class _Sequences:
    """Tokens of [size, heads, tokens] by sequence, [sequences, tokens, heads, size], and states."""

    def __init__(self, task: Task, *names: str) -> None:
        tokens, heads, size = task[names[0]].array.shape[1:]
        start = task["state"].array
        sequences = start.shape[2]
        self.length = tokens // sequences
        shape = (sequences, self.length, heads, size)
        self.sources = [viewed(task[name].array, shape) for name in names]
        self._start = viewed(start, (sequences, heads, size, size))
        self._kept = Snapshots(task, self._start.shape)
        self.y = self._kept.outputs.reshape(shape)
        self.state = self._kept.state
        self.change = task.scratch(self.state.shape)

    def begin(self) -> None:
        """Set the states to where they start from."""
        np.copyto(self.state, self._start)

    def add(self, rows: Array, columns: Array) -> None:
        """Add products of rows [sequences, heads, size, 1] and columns [..., 1, size] to states."""
        np.multiply(rows, columns, self.change)
        np.add(self.state, self.change, self.state)


@kernel("rwkv_wkv6")
def rwkv_wkv6(task: Task) -> Sequence[Step]:
    """What states give is read before the token changes them; its own share is a dot product."""
    of = _Sequences(task, "k", "v", "r", "td")
    k, v, r, td = of.sources
    tf = task["tf"].array
    shares = task.scratch(of.y.shape)
    totals = task.scratch((*of.y.shape[:3], 1))
    past = task.scratch((*of.state.shape[:2], 1, of.state.shape[3]))

    def run() -> None:
        of.begin()
        np.multiply(r, k, shares)
        np.multiply(shares, tf, shares)
        np.add.reduce(shares, axis=-1, keepdims=True, out=totals)
        np.multiply(totals, v, of.y)
        for t in range(of.length):
            np.matmul(r[:, t, :, None], of.state, past)
            np.add(of.y[:, t, :, None], past, of.y[:, t, :, None])
            np.multiply(of.state, td[:, t, ..., None], of.state)
            of.add(k[:, t, ..., None], v[:, t, :, None])

    return [run]


@kernel("gated_linear_attn")
def gated_linear_attn(task: Task) -> Sequence[Step]:
    """States fade, take in a token, and are read."""
    of = _Sequences(task, "k", "v", "q", "g")
    k, v, q, g = of.sources
    scale = np.float32(task.number("scale"))

    def run() -> None:
        of.begin()
        for t in range(of.length):
            np.multiply(of.state, g[:, t, ..., None], of.state)
            of.add(k[:, t, ..., None], v[:, t, :, None])
            np.matmul(q[:, t, :, None], of.state, of.y[:, t, :, None])
        np.multiply(of.y, scale, of.y)

    return [run]


@kernel("rwkv_wkv7")
def rwkv_wkv7(task: Task) -> Sequence[Step]:
    """States have a row for each element of v here: products with vectors are from the right."""
    of = _Sequences(task, "r", "w", "k", "v", "a", "b")
    r, w, k, v, a, b = of.sources
    found = task.scratch((*of.state.shape[:3], 1))

    def run() -> None:
        of.begin()
        for t in range(of.length):
            np.matmul(of.state, a[:, t, ..., None], found)
            np.multiply(of.state, w[:, t, :, None], of.state)
            of.add(v[:, t, ..., None], k[:, t, :, None])
            of.add(found, b[:, t, :, None])
            np.matmul(of.state, r[:, t, ..., None], of.y[:, t, ..., None])

    return [run]


@kernel("gated_delta_net")
def gated_delta_net(task: Task) -> Sequence[Step]:
    """A call runs over all tokens."""
    return [_DeltaNet(task)]


class _DeltaNet:
    """States are [sequences, heads, size of v, size of k]."""

    def __init__(self, task: Task) -> None:
        self._v, self._beta = task["v"].array, task["beta"].array
        self._g, self._start = task["g"].array, task["state"].array
        sequences, self._tokens, heads, size = self._v.shape
        self._scale = np.float32(1 / math.sqrt(size))
        self._kept = Snapshots(task, self._start.shape)
        self._y = self._kept.outputs.reshape(self._v.shape)
        self._shared = [(task[n].array, task.scratch(self._v.shape)) for n in "qk"]
        self._q, self._k = (wide for _, wide in self._shared)
        self._decay = task.scratch(self._g.shape)
        self._wrong = task.scratch((sequences, heads, size, 1))
        self._change = task.scratch(self._start.shape)

    def __call__(self) -> None:
        self._kept.begin(self._tokens)
        np.copyto(self._kept.state, self._start)
        np.exp(self._g, self._decay)
        for narrow, wide in self._shared:
            _share(narrow, wide)
        for t in range(self._tokens):
            self._advance(t)
            np.matmul(self._kept.state, self._q[:, t, ..., None], self._y[:, t, ..., None])
            self._kept.keep(self._tokens - 1 - t)
        np.multiply(self._y, self._scale, self._y)

    def _advance(self, t: int) -> None:
        state, wrong = self._kept.state, self._wrong
        np.multiply(state, self._decay[:, t, :, None], state)
        np.matmul(state, self._k[:, t, ..., None], wrong)
        np.subtract(self._v[:, t, ..., None], wrong, wrong)
        np.multiply(wrong, self._beta[:, t, ..., None], wrong)
        np.multiply(wrong, self._k[:, t, :, None], self._change)
        np.add(state, self._change, state)


def _share(narrow: Array, wide: Array) -> None:
    """Copy q or k for all heads and sequences of v: heads in turn, sequences in groups."""
    batch, tokens, heads, size = narrow.shape
    sequences, _, all_heads, _ = wide.shape
    spread = wide.reshape(batch, sequences // batch, tokens, all_heads // heads, heads, size)
    np.copyto(spread, narrow[:, None, :, None])
