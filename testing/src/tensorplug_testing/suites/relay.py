"""`Relay`: plans that hand a vector on from memory to memory, for tests of order."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tensorplug as tp
from tensorplug.device import Backend
from tensorplug.graph.tensor import Array, Place
from tensorplug_testing.suites.work import UNTOUCHED, Planned, Suite, Work, numbers

STEPS = 4
"""Ops of each stage of a relay."""


class Relay:
    """Plans that hand a vector on from memory to memory, each on a stream of its own choice.

    In a `ring` the last plan writes where the first one reads.
    """

    def __init__(
        self, work: Work, streams: Sequence[Backend], elements: int, *, ring: bool = False
    ) -> None:
        self._work = work
        self.elements = elements
        self.streams = list(streams)
        inputs = [tp.input("x", (elements,), tp.F32) for _ in streams]
        size = work.device.buffer_type.alloc_size(inputs[0])
        self._buffers = [work.alloc(size) for _ in streams]
        self._buffers.append(self._buffers[0] if ring else work.alloc(size))
        self._plans = [
            self._plan(x, stream, i)
            for i, (x, stream) in enumerate(zip(inputs, streams, strict=True))
        ]

    def _plan(self, x: tp.Tensor, stream: Backend, i: int) -> Planned:
        y = self._work.chain(x, STEPS)
        return self._work.plan(y, stream, {x: self.place(i), y: self.place(i + 1)})

    def place(self, i: int) -> Place:
        """Where the `i`-th plan reads; the last is where the last one writes."""
        return Place(self._buffers[i], 0)

    def start(self, seed: int) -> None:
        """Put a vector where the first plan reads, and UNTOUCHED everywhere else."""
        for buffer in self._buffers:
            buffer.fill(UNTOUCHED)
        self._buffers[0].write(0, numbers(self.elements, seed=seed))

    def run(self, between: Callable[[Backend, Backend], Any] | None = None) -> None:
        """Queue all plans; `between` orders each stream before the next."""
        for i, planned in enumerate(self._plans):
            if i and between is not None:
                between(self.streams[i - 1], self.streams[i])
            planned.plan.run()

    def wanted(self, seed: int) -> Array:
        """What arrives at the end."""
        return self._work.after(numbers(self.elements, seed=seed), STEPS * len(self._plans))

    def read(self, i: int = -1) -> Array:
        """What lies at the end, or elsewhere, now."""
        return self._buffers[i].read(0, 4 * self.elements).view(np.float32)

    def check(self, seed: int) -> None:
        """Wait for the last stream, and compare what arrived."""
        self.streams[-1].synchronize()
        np.testing.assert_array_equal(self.read(), self.wanted(seed))

    def close_input(self) -> None:
        """Close the memory that the first plan reads."""
        self._buffers[0].close()

    def close_plan(self) -> None:
        """Close the last plan."""
        self._plans[-1].plan.close()

    def close_stream(self) -> None:
        """Close the last stream and its plan."""
        self.streams[-1].close(force=True)


class RelaySuite(Suite):
    """Order is tried `rounds` times on vectors of `elements` numbers.

    Where a wait is missing, a stream reads what lay there before.
    """

    rounds = 10
    elements = 1 << 14
