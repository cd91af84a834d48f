"""`Draw`: inputs, weights and caches of a graph, with their values."""

from typing import Any

import numpy as np

import tensorplug as tp
from tensorplug.device import Array, BufferType, BufferUsage, Tensor, place
from tensorplug.ops.ids import NO_ROW
from tensorplug_cpu.reference import encode
from tensorplug_testing.suites.work import Rig


class Draw:
    """Makes leafs with random values; `given` and `stored` hold these values.

    Shapes are in NumPy order. Inputs get new values before each run. Weights are placed in the
    device's memory; caches too, or in memory of the type `caches_in`.
    """

    def __init__(self, work: Rig, seed: int, caches_in: BufferType | None = None) -> None:
        self._work = work
        self._cache_type = caches_in or work.device.buffer_type
        self._rng = np.random.default_rng(seed)
        self._spans: dict[Tensor, tuple[float, float]] = {}
        self._rows: dict[Tensor, tuple[int, bool]] = {}
        self._masks: dict[Tensor, int] = {}
        self.stored: dict[Tensor, Array] = {}
        self.caches: list[Tensor] = []

    # --- leafs -----------------------------------------------------------------------------

    def input(
        self, *shape: int, dtype: tp.DType = tp.F32, low: float = -1, high: float = 1
    ) -> Tensor:
        """An input of numbers between `low` and `high`."""
        tensor = tp.input("input", shape, dtype)
        self._spans[tensor] = (low, high)
        return tensor

    def rows(self, count: int, below: int, *, partly: bool = False) -> Tensor:
        """An input of different i32 row numbers below `below`; with `partly`, some are -1."""
        tensor = tp.input("rows", (count,), tp.I32)
        self._rows[tensor] = (below, partly)
        return tensor

    def positions(self, count: int) -> Tensor:
        """An input of consecutive i32 positions."""
        return self._place("positions", np.arange(3, 3 + count, dtype=np.int32), tp.I32)

    def mask(self, tokens: int, seen: int, *, dtype: tp.DType = tp.F32) -> Tensor:
        """A causal mask: the last of `tokens` sees `seen` positions, the token before it one less,
        and so on."""
        tensor = tp.input("mask", (tokens, seen), dtype)
        self._masks[tensor] = seen - tokens
        return tensor

    def weights(self, *shape: int, dtype: tp.DType = tp.F32) -> Tensor:
        """Weights of a type that has an encoder; the length of rows is about 1."""
        limit = (3 / shape[-1]) ** 0.5
        return self._place("weights", encode(dtype, self._uniform(-limit, limit, shape)), dtype)

    def scales(self, size: int) -> Tensor:
        """A vector of weights close to 1."""
        return self._place("scales", self._uniform(0.5, 1.5, (size,)), tp.F32)

    def cache(self, *shape: int, dtype: tp.DType = tp.F16) -> Tensor:
        """A cache that graphs write to, with random numbers at the start."""
        data = encode(dtype, self._uniform(-1, 1, shape))
        tensor = self._place("cache", data, dtype, self._cache_type)
        self.caches.append(tensor)
        return tensor

    # --- values ----------------------------------------------------------------------------

    def inputs(self) -> dict[Tensor, Array]:
        """New values of all inputs."""
        return {
            **{
                t: encode(t.dtype, self._uniform(*span, t.shape)) for t, span in self._spans.items()
            },
            **{
                t: self._permuted(t.size, below, partly=partly)
                for t, (below, partly) in self._rows.items()
            },
            **{t: _causal(t, past) for t, past in self._masks.items()},
        }

    def _place(
        self, name: str, data: Any, dtype: tp.DType, kind: BufferType | None = None
    ) -> Tensor:
        memory = kind or self._work.device.buffer_type
        tensor = place(name, data, memory, usage=BufferUsage.WEIGHTS, dtype=dtype)
        assert tensor.place is not None
        self._work.keep(tensor.place.buffer)
        self.stored[tensor] = data
        return tensor

    def _uniform(self, low: float, high: float, shape: tuple[int, ...]) -> Array:
        return self._rng.uniform(low, high, shape).astype(np.float32)

    def _permuted(self, count: int, below: int, *, partly: bool) -> Array:
        rows = self._rng.permutation(below)[:count].astype(np.int32)
        if partly:
            rows[self._rng.random(count) < 1 / 3] = NO_ROW
            rows[self._rng.integers(count)] = NO_ROW
        return rows


def _causal(mask: Tensor, past: int) -> Array:
    tokens, seen = mask.shape
    hidden = np.arange(seen) > np.arange(tokens)[:, np.newaxis] + past
    return np.where(hidden, -np.inf, 0).astype(mask.dtype.storage)
