"""`Relay`: a chain of plans that pass a vector from buffer to buffer, for tests of order."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tensorplug as tp
from tensorplug.device import Array, Backend, Place
from tensorplug_testing.suites.work import UNTOUCHED, Planned, Rig, Suite, numbers

STEPS = 4
"""Ops of each stage of a relay."""


class Relay:
    """Plans that pass a vector from buffer to buffer, each on one of `streams`.

    In a `ring` the last plan writes to the buffer that the first plan reads.
    """

    def __init__(
        self, work: Rig, streams: Sequence[Backend], elements: int, *, ring: bool = False
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
        """The place that plan `i` reads; the last place is the one that the last plan writes."""
        return Place(self._buffers[i], 0)

    def start(self, seed: int) -> None:
        """Write a vector to the first place, and UNTOUCHED to all other places."""
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
        """The expected vector at the last place."""
        return self._work.after(numbers(self.elements, seed=seed), STEPS * len(self._plans))

    def read(self, i: int = -1) -> Array:
        """The present content of a place, by default the last one."""
        return self._buffers[i].read(0, 4 * self.elements).view(np.float32)

    def check(self, seed: int) -> None:
        """Wait for the last stream and compare the vector at the last place."""
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
    """Base class of tests of order, which run `rounds` times on vectors of `elements` numbers.

    If a wait is missing, a stream reads the old content of a buffer.
    """

    rounds = 10
    elements = 1 << 14
