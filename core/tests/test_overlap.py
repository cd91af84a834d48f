"""Batches in flight keep two devices busy: one goes on while the other still has work to do.

A late device does queued work only when something waits for it. Each has its own timeline: what was
done after a batch was submitted is what the scheduler waited for.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device.marks import Mark
from tensorplug.device.moving import queue_write
from tensorplug.errors import DeviceError
from tensorplug_testing.null import NullDevice
from tensorplug_testing.timeline import Timeline

X = np.arange(8, dtype=np.float32).reshape(2, 4)
BATCHES = 4


class Line:
    """Two stages: `relu` on the first device, two times `scale` on the second; x is the host's."""

    def __init__(self, first: NullDevice, second: NullDevice) -> None:
        host = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True)
        self.first, self.second, self.devices = first, second, [first, second, host]
        one, two, last = self.streams = [device.open() for device in self.devices]
        self.x = tp.input("x", (2, 4), tp.F32)
        middle = tp.relu(self.x)
        self.y = tp.scale(tp.scale(middle, 2.0), 2.0)
        self.pins = {middle: one, self.y.sources[0]: two, self.y: two}
        self.scheduler = tp.Scheduler([one, two, last], parallel=True, sanitize=True)
        self.plan = self.scheduler.schedule(self.y, pins=self.pins)
        self.flying: list[Any] = []

    def submit(self, count: int) -> None:
        """Put more batches in flight."""
        for _ in range(count):
            self.flying.append(self.plan.submit({self.x: X + len(self.flying)}))

    def check(self) -> None:
        """Wait for all batches and look at what they give."""
        for i, batch in enumerate(self.flying):
            np.testing.assert_array_equal(batch[self.y], 4 * (X + i))

    def close(self) -> None:
        self.scheduler.close(force=True)
        for device in self.devices:
            device.close(force=True)


MakeLine = Callable[[NullDevice, NullDevice], Line]


@pytest.fixture
def line() -> Iterator[MakeLine]:
    made: list[Line] = []

    def make(first: NullDevice, second: NullDevice) -> Line:
        made.append(Line(first, second))
        return made[-1]

    yield make
    for each in made:
        each.close()


def late(name: str, **options: bool) -> NullDevice:
    return NullDevice(name, asynchronous=True, timeline=Timeline(), **options)


def in_host_memory() -> NullDevice:
    return NullDevice("host:0", host=True)


# --- what goes on ------------------------------------------------------------------------------


def test_host_works_on_the_next_batch_while_a_device_has_not_begun(line: MakeLine) -> None:
    work = line(in_host_memory(), late("late:0"))

    work.submit(2)

    assert work.first.computed == ["relu", "relu"]
    assert work.second.computed == []
    work.check()


def test_host_is_one_batch_ahead_of_the_device_that_reads_its_memory(line: MakeLine) -> None:
    work = line(in_host_memory(), late("late:0"))

    work.submit(BATCHES)

    # The queued copy of the third batch is behind the work on the second.
    assert work.first.computed == ["relu"] * BATCHES
    assert work.second.computed == ["scale"] * 2 * (BATCHES - 2)
    work.check()


def test_devices_of_two_kinds_need_not_wait_for_each_other_s_work(line: MakeLine) -> None:
    work = line(late("late:0"), late("other:0"))
    work.second.hang(limit=0)

    work.submit(BATCHES)

    assert work.first.computed == ["relu"] * BATCHES
    assert work.second.computed == []
    work.second.release()
    work.check()


def test_batch_whose_turn_comes_again_is_waited_for(line: MakeLine) -> None:
    work = line(late("late:0"), late("other:0"))
    work.submit(BATCHES)
    work.second.hang(limit=0)

    with pytest.raises(DeviceError, match="other:0: hangs"):
        work.submit(1)

    work.second.release()


def test_schedule_over_more_than_four_streams_has_a_batch_for_each() -> None:
    devices = [late(f"late:{i}") for i in range(5)]
    host = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True)
    streams = [device.open() for device in (*devices, host)]
    x = tp.input("x", (2, 4), tp.F32)
    nodes = [x]
    for _ in devices:
        nodes.append(tp.scale(nodes[-1], 2.0))
    pins = dict(zip(nodes[1:], streams[:-1], strict=True))
    with tp.Scheduler(streams, parallel=True) as scheduler:
        plan = scheduler.schedule(nodes[-1], pins=pins)
        devices[-1].hang(limit=0)

        flying = [plan.submit({x: X + i}) for i in range(6)]

        devices[-1].release()
        for i, batch in enumerate(flying):
            np.testing.assert_array_equal(batch[nodes[-1]], 32 * (X + i))
    for device in (*devices, host):
        device.close(force=True)


def test_device_goes_on_once_its_memory_is_copied(line: MakeLine) -> None:
    work = line(late("late:0"), late("late:1"))
    work.submit(2)

    work.streams[0].synchronize()

    assert work.first.computed == ["relu", "relu"]
    assert work.second.computed == []
    work.check()


def test_device_goes_on_only_once_its_memory_is_copied(line: MakeLine) -> None:
    work = line(late("late:0"), late("late:1"))
    work.submit(2)
    work.second.hang(limit=0)

    with pytest.raises(DeviceError, match="late:1: hangs"):
        work.streams[0].synchronize()

    assert work.first.computed == ["relu"]
    work.second.release()
    work.check()


@pytest.mark.parametrize("first_lacks", ["events", "async_transfer", "async_copy", "nothing"])
@pytest.mark.parametrize("second_lacks", ["events", "async_transfer", "async_copy", "nothing"])
@pytest.mark.parametrize("names", [("late:0", "late:1"), ("late:0", "other:0")], ids=str)
def test_every_pair_of_devices_gives_the_same_values(
    line: MakeLine, names: tuple[str, str], first_lacks: str, second_lacks: str
) -> None:
    options = [{} if lack == "nothing" else {lack: False} for lack in (first_lacks, second_lacks)]
    work = line(late(names[0], **options[0]), late(names[1], **options[1]))

    work.submit(3 * BATCHES)

    work.check()


def test_reader_without_events_is_waited_for_whole(line: MakeLine) -> None:
    work = line(in_host_memory(), late("late:0", events=False))

    work.submit(2)

    assert work.first.computed == ["relu", "relu"]
    assert work.second.computed == ["scale", "scale"]
    work.check()


def choose(node: tp.Tensor, out: Any, w: Any, x: Any, ids: Any) -> None:
    """The product of each row with the matrix of its expert."""
    for t in range(x.shape[1]):
        for i in range(ids.shape[3]):
            out[0, t, i] = w[0, ids[0, 0, t, i]] @ x[0, t, i % x.shape[2]]


def test_experts_are_copied_while_the_device_works() -> None:
    options = {"kernels": {"mul_mat_id": choose}}
    gpu = NullDevice("late:0", asynchronous=True, offloads={"mul_mat_id"}, **options)
    cpu = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True, **options)
    x, ids = tp.input("x", (2, 1, 4), tp.F32), tp.input("ids", (2, 2), tp.I32)
    weights = np.random.default_rng(1).integers(-9, 9, (8, 4, 4)).astype(np.float32)
    values, used = np.ones((2, 1, 4), np.float32), np.array([[1, 2], [6, 1]], np.int32)
    with gpu, cpu, gpu.open() as fast, cpu.open() as slow:
        y = tp.mul_mat_id(slow.place("experts", weights, usage=tp.WEIGHTS), x, ids)
        with tp.Scheduler([fast, slow], parallel=True) as scheduler:
            plan = scheduler.schedule(y)
            flying = [plan.submit({x: values + i, ids: used}) for i in range(3)]
            before = gpu.computed
            found = [batch[y] for batch in flying]

    wanted = np.einsum("tirc,tc->tir", weights[used], values[:, 0])
    assert before == []
    for i, value in enumerate(found):
        np.testing.assert_array_equal(value, wanted * (1 + i))


# --- marks -------------------------------------------------------------------------------------


def test_mark_is_waited_for_without_later_work() -> None:
    with late("late:0") as device, device.open() as stream:
        buffer = device.buffer_type.alloc(64)
        queue_write(stream, tp.Place(buffer, 0), bytes(8))
        mark = Mark(stream)
        queue_write(stream, tp.Place(buffer, 8), bytes(16))
        early = mark.done

        mark.synchronize()

        assert (early, mark.done) == (False, True)
        assert [e.detail for e in device.log if e.what == "write"] == [8]


def test_mark_of_a_stream_without_events_is_done_once_all_of_it_was_waited_for() -> None:
    with late("late:0", events=False) as device, device.open() as stream:
        mark = Mark(stream)
        early = mark.done
        stream.synchronize()
        later = Mark(stream)

        assert (early, mark.done, later.done) == (False, True, False)


def test_mark_that_somebody_waited_for_is_not_waited_for_again() -> None:
    with late("late:0", events=False) as device, device.open() as stream:
        buffer = device.buffer_type.alloc(64)
        mark = Mark(stream)
        stream.synchronize()
        queue_write(stream, tp.Place(buffer, 0), bytes(8))

        mark.synchronize()

        assert [e for e in device.log if e.what == "write"] == []


def test_mark_does_not_hold_up_its_own_stream() -> None:
    with late("late:0") as device, device.open() as stream:
        Mark(stream).order(stream)

        stream.synchronize()
