"""Streams, events, and copies from GPU to GPU; emulated.

Emulated streams do nothing until something waits for them, so that missing waits are noticed.
"""

import gc

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import order_after
from tensorplug_emulator import missing
from tensorplug_emulator.suites.devices import StreamTests

DATA = np.arange(16, dtype=np.uint8)
X = np.arange(8, dtype=np.float32).reshape(2, 4)

needs_kernels = pytest.mark.skipif(bool(missing()), reason=missing())


def filled(device, value=0):
    """16 bytes of a device."""
    buffer = device.buffer_type.alloc(16)
    buffer.fill(value)
    return buffer


class TestStreams(StreamTests):
    """What every stand-in's streams are tested for."""


def test_event_behind_bytes_that_were_read_is_reached(device):
    buffer, seen = filled(device), np.zeros(16, np.uint8)
    with device.open() as first, device.open() as second:
        first.write_async(buffer, 0, DATA.data)
        event = first.record()
        second.wait(event)
        second.read_async(buffer, 0, seen.data)

        assert event.done

        second.synchronize()


@pytest.fixture
def no_collector():
    """Nothing of earlier tests is given back meanwhile, which would wait for the GPU."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_event_is_reached_when_its_work_is_done(device, stream):
    buffer = filled(device)
    for _ in range(2):
        stream.copy_async(stream, tp.Place(buffer, 0), tp.Place(buffer, 8), 8)
    event = stream.record()

    seen = [event.done for _ in range(3)]

    assert seen == [False, True, True]


def test_streams_of_two_devices_wait_for_each_other(pair):
    first, second = pair
    there, seen = filled(second), np.zeros(16, np.uint8)
    with first.open() as one, second.open() as two:
        two.write_async(there, 0, DATA.data)
        order_after(two, one)
        here = filled(first)
        one.copy_async(one, tp.Place(there, 0), tp.Place(here, 0), 16)
        one.read_async(here, 0, seen.data)
        one.synchronize()

    assert seen.tolist() == DATA.tolist()


def test_copy_between_devices_starts_after_the_work_of_its_source(pair):
    first, second = pair
    here, there = filled(first), filled(second)
    with first.open() as one, second.open() as two:
        one.write_async(here, 0, DATA.data)

        taken = two.copy_async(one, tp.Place(here, 4), tp.Place(there, 8), 8)
        two.synchronize()

        assert taken
    assert there.read(0, 16).tolist() == [*[0] * 8, *DATA[4:12].tolist()]


def test_blocking_copy_between_devices_needs_no_host(pair):
    first, second = pair
    here, there = filled(first, 7), filled(second)

    assert there._copy_from(here, 0, 4, 8)

    assert there.read(0, 16).tolist() == [*[0] * 4, *[7] * 8, *[0] * 4]


def test_copy_over_itself_is_left_to_others(device, stream):
    buffer = filled(device)

    assert not stream.copy_async(stream, tp.Place(buffer, 0), tp.Place(buffer, 4), 8)
    assert stream.copy_async(stream, tp.Place(buffer, 0), tp.Place(buffer, 8), 8)


def test_host_memory_of_a_queued_transfer_is_kept(device, stream):
    buffer = filled(device)
    stream.write_async(buffer, 0, np.full(16, 9, np.uint8).data)

    stream.synchronize()

    assert set(buffer.read(0, 16).tolist()) == {9}
    assert not stream._held


def test_host_memory_of_a_transfer_that_is_queued_while_another_thread_waits_is_kept(
    device, stream, monkeypatch
):
    buffer, real = filled(device), stream.stream.synchronize

    def meanwhile():
        real()
        stream.write_async(buffer, 0, np.full(16, 9, np.uint8).data)

    with monkeypatch.context() as other_thread:
        other_thread.setattr(stream.stream, "synchronize", meanwhile)
        stream.drain()

    assert len(stream._held) == 1


def test_event_on_a_gpu_that_is_lost_is_reached_and_waiting_says_why(device, machine):
    from cupy.cuda.runtime import CUDARuntimeError

    with device.open() as stream:
        stream.write_async(filled(device), 0, DATA.data)
        event = stream.record()
        machine.gpus[0].error = CUDARuntimeError(719, "a kernel failed")

        reached = event.done

        with pytest.raises(tp.DeviceLost, match="a kernel failed"):
            event.synchronize()
        machine.gpus[0].error = None
    assert reached


@needs_kernels
@pytest.mark.usefixtures("no_collector")
def test_batches_are_queued_without_waiting_for_the_gpu(stream, machine):
    x = tp.input("x", (2, 4), tp.F32)
    y = tp.scale(tp.relu(x), 2.0)
    with tp.open("cpu") as cpu, tp.Scheduler([stream, cpu], parallel=True) as scheduler:
        plan = scheduler.schedule(y)
        before = machine.waits

        flying = [plan.submit({x: X + i}) for i in range(4)]
        waited = machine.waits - before

        for i, batch in enumerate(flying):
            np.testing.assert_array_equal(batch[y], 2 * (X + i))
    assert waited == 0


@needs_kernels
def test_graph_over_two_devices_gives_what_one_gives(pair):
    first, second = pair
    x = tp.input("x", (2, 4), tp.F32)
    middle = tp.scale(x, 3.0)
    y = tp.scale(middle, 2.0) + x
    with first.open() as one, second.open() as two, tp.open("cpu") as cpu:
        streams = [one, two, cpu]
        with tp.Scheduler(streams, sanitize=True) as scheduler:
            plan = scheduler.schedule(y, pins={middle: one, y: two})
            got = [plan.run({x: X + i})[y] for i in range(4)]

    for i, each in enumerate(got):
        np.testing.assert_array_equal(each, 7 * (X + i))
