"""Batches are queued for a device that cannot begin yet, without waiting for it.

An event of the user's holds the device up. A timer releases it if the host waits all the same, so
that this fault fails the test and does not hang it.
"""

import threading
from collections.abc import Iterator

import numpy as np
import pyopencl as cl
import pytest

import tensorplug as tp
from tensorplug_testing.null import NullDevice

LIMIT = 20.0
"""Seconds after which the timer releases the device."""
X = np.arange(8, dtype=np.float32).reshape(2, 4)


class Gate:
    """Holds up what is queued on a stream from now on, until `open()`."""

    def __init__(self, stream: tp.Backend) -> None:
        self._event = cl.UserEvent(stream.device.context)
        self._lock = threading.Lock()
        self.opened_by = ""
        cl.enqueue_barrier(stream.queue, wait_for=[self._event])
        self._timer = threading.Timer(LIMIT, self.open, ["the timer"])
        self._timer.start()

    def open(self, by: str = "the test") -> None:
        """Let the stream go on; the first caller is remembered."""
        self._timer.cancel()
        with self._lock:
            if not self.opened_by:
                self.opened_by = by
                self._event.set_status(cl.command_execution_status.COMPLETE)


@pytest.fixture
def gate(stream) -> Iterator[Gate]:
    held = Gate(stream)
    yield held
    held.open()


@pytest.mark.parametrize(
    ("host", "batches"), [(True, 1), (False, 4)], ids=["from host memory", "from another device"]
)
def test_batches_are_queued_behind_work_that_has_not_begun(
    stream, gate, *, host: bool, batches: int
) -> None:
    x = tp.input("x", (2, 4), tp.F32)
    middle = tp.relu(x)
    y = tp.scale(middle, 2.0)
    with NullDevice("null:0", host=host) as null, null.open() as first, tp.open("cpu") as cpu:
        streams = [first, stream, cpu]
        with tp.Scheduler(streams, parallel=True, sanitize=True) as scheduler:
            plan = scheduler.schedule(y, pins={middle: first, y: stream})

            flying = [plan.submit({x: X + i}) for i in range(batches)]

            waiting = [batch.done for batch in flying]
            gate.open()
            for i, batch in enumerate(flying):
                np.testing.assert_array_equal(batch[y], 2 * (X + i))
    assert gate.opened_by == "the test"
    assert null.computed == ["relu"] * batches
    assert waiting == [False] * batches


def test_threads_may_wait_for_a_stream_that_another_has_closed(device):
    stream = device.open()
    stream.close()

    stream.drain()

    assert not stream.has_failed
