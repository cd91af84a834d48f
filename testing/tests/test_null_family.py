"""Several fake devices at once, without float64, and devices that hang."""

import threading
from collections import deque

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import transfer
from tensorplug.device import order_after
from tensorplug.device.moving import queue_read, queue_write
from tensorplug_testing.null import NullDevice, null_devices
from tensorplug_testing.timeline import NullEvent, Timeline

SOON = 0.05
"""Seconds until a test gives up on a device that hangs."""


@pytest.fixture
def pair():
    devices = null_devices(2, family="acme", asynchronous=True)
    yield devices
    for device in devices:
        device.release()
        device.close(force=True)


def filled(device: NullDevice, value: int) -> tp.Buffer:
    buffer = device.buffer_type.alloc(4)
    buffer.fill(value)
    return buffer


# --- families ----------------------------------------------------------------------------------


def test_devices_of_a_family_are_numbered_and_have_memory_of_their_own() -> None:
    devices = null_devices(3, family="acme", memory=1000)

    kept = devices[0].buffer_type.alloc(900)

    assert kept.size == 900
    assert [d.name for d in devices] == ["acme:0", "acme:1", "acme:2"]
    assert [d.memory().free for d in devices] == [100, 1000, 1000]
    assert not devices[0].supports_buffer_type(devices[1].buffer_type)


def test_devices_of_a_family_accept_each_others_events_and_copies(pair) -> None:
    first, second = (device.open() for device in pair)
    a, b = filled(pair[0], 7), filled(pair[1], 0)

    assert second.accepts(first.record())
    assert second.copy_async(first, tp.Place(a, 0), tp.Place(b, 0), 4)
    second.synchronize()

    assert b.read(0, 4).tolist() == [7] * 4


def test_devices_of_a_family_overlap_as_the_seed_says() -> None:
    seen = set()
    for seed in range(20):
        devices = null_devices(2, seed=seed, asynchronous=True)
        shared, out = filled(devices[0], 0), np.zeros(4, np.uint8)
        streams = [device.open() for device in devices]
        streams[0].write_async(shared, 0, memoryview(b"data"))
        streams[1].read_async(shared, 0, out.data)
        streams[1].synchronize()
        seen.add(out.tobytes())
        for device in devices:
            device.close(force=True)

    assert seen == {b"data", bytes(4)}


# --- no float64 --------------------------------------------------------------------------------


def test_device_without_float64_refuses_it_and_nothing_else() -> None:
    device = NullDevice(float64=False)
    x, y = tp.input("x", (4,), tp.F64), tp.input("y", (4,), tp.F32)

    assert device.refuses(tp.dup(x)) == tp.Refusal("null:0: no float64, which this dup needs")
    assert device.refuses(tp.dup(y)) is None
    assert NullDevice().refuses(tp.dup(x)) is None


# --- host buffers ------------------------------------------------------------------------------


def test_host_buffers_are_a_second_kind_of_memory() -> None:
    with NullDevice(host_buffer=True) as device:
        kind = device.host_buffer_type

        assert device.capabilities.host_buffer
        assert (kind.name, kind.is_host, device.buffer_type.is_host) == ("null:0 host", True, False)
        assert device.supports_buffer_type(kind)


# --- devices that hang -------------------------------------------------------------------------


def test_who_waits_for_a_device_that_hangs_gets_an_error_in_the_end(pair) -> None:
    first = pair[0].open()
    x = first.place("x", np.ones(4, np.float32))
    event = first.record()
    first.write_async(x.place.buffer, 0, memoryview(bytes(4)))

    pair[0].hang(limit=SOON)

    for wait in (first.synchronize, first.record().synchronize, lambda: transfer.read(x)):
        with pytest.raises(tp.DeviceError) as error:
            wait()
        assert str(error.value) == ("acme:0: hangs: nothing was done for 0.05 s; call release()")
    assert event.done
    assert not first.record().done


def test_event_waits_for_a_job_that_another_thread_is_about_to_run() -> None:
    timeline = Timeline()
    stream, done, events = timeline.stream(), list[str](), list[NullEvent]()

    class Watched(deque):  # what another thread sees when it comes between two steps of this one
        def popleft(self):
            job = super().popleft()
            events.append(NullEvent(stream, ""))
            return job

    stream._jobs = Watched()
    stream.put(lambda: done.append("job"))
    timeline.run(stream, 1)

    (event,) = events
    assert event._position == 1
    assert (event.done, done) == (True, ["job"])


def test_released_device_does_what_was_queued(pair) -> None:
    first, buffer = pair[0].open(), filled(pair[0], 0)
    pair[0].hang(limit=SOON)
    first.write_async(buffer, 0, memoryview(b"data"))

    pair[0].release()
    first.synchronize()

    assert buffer.read(0, 4).tobytes() == b"data"


def test_waiting_ends_when_another_thread_releases_the_device(pair) -> None:
    first, buffer = pair[0].open(), filled(pair[0], 0)
    first.write_async(buffer, 0, memoryview(b"data"))
    pair[0].hang(limit=10)
    waiting = threading.Thread(target=first.synchronize)
    waiting.start()

    pair[0].release()
    waiting.join(5)

    assert not waiting.is_alive()
    assert buffer.read(0, 4).tobytes() == b"data"


def test_other_devices_go_on_while_one_hangs(pair) -> None:
    first, second = (device.open() for device in pair)
    a, b = filled(pair[0], 0), filled(pair[1], 0)
    pair[0].hang(limit=SOON)
    first.write_async(a, 0, memoryview(b"data"))
    second.write_async(b, 0, memoryview(b"else"))

    second.synchronize()

    assert b.read(0, 4).tobytes() == b"else"


def test_stream_that_waits_for_a_device_that_hangs_is_held_up_too(pair) -> None:
    first, second = (device.open() for device in pair)
    a, seen = filled(pair[0], 0), np.zeros(4, np.uint8)
    pair[0].hang(limit=SOON)
    queue_write(first, tp.Place(a, 0), b"data")
    order_after(first, second)
    queue_read(second, tp.Place(a, 0), seen)

    with pytest.raises(tp.DeviceError, match="acme:0: hangs"):
        second.synchronize()
    pair[0].release()
    second.synchronize()

    assert seen.tobytes() == b"data"


def test_stream_on_another_timeline_is_held_up_too() -> None:
    devices = [NullDevice(f"a:{i}", asynchronous=True, timeline=Timeline(i)) for i in range(2)]
    first, second = (device.open() for device in devices)
    a, seen = filled(devices[0], 0), np.zeros(4, np.uint8)
    devices[0].hang(limit=SOON)
    queue_write(first, tp.Place(a, 0), b"data")
    order_after(first, second)
    queue_read(second, tp.Place(a, 0), seen)

    with pytest.raises(tp.DeviceError, match="a:0: hangs"):
        second.synchronize()
    devices[0].release()
    second.synchronize()

    assert seen.tobytes() == b"data"
    for device in devices:
        device.close(force=True)


def test_device_that_works_at_once_hangs_in_the_call() -> None:
    with NullDevice() as device:
        x = tp.input("x", (4,), tp.F32)
        y = tp.dup(x)
        places = {t: tp.Place(device.buffer_type.alloc(16), 0) for t in (x, y)}
        plan = device.open().plan(tp.Part.of(tp.Graph(y), tp.Bindings(places)))
        device.hang(limit=SOON)

        with pytest.raises(tp.DeviceError, match="null:0: hangs"):
            plan.run()

        device.release()
        plan.run()


def test_run_on_a_device_that_hangs_fails_and_the_schedule_can_be_run_again() -> None:
    with NullDevice(asynchronous=True) as device, NullDevice("host:0", host=True) as host:
        scheduler = tp.Scheduler([device.open(), host.open()])
        x = tp.input("x", (4,), tp.F32)
        y = tp.scale(x, 2.0)
        schedule = scheduler.schedule(y, pins={y: scheduler.backends[0]})
        device.hang(limit=SOON)

        with pytest.raises(tp.DeviceError, match="null:0: hangs"):
            schedule.run({x: np.ones(4, np.float32)})[y]
        device.release()

        assert schedule.run({x: np.ones(4, np.float32)})[y].tolist() == [2] * 4
        scheduler.close(force=True)


def test_everything_closes_while_the_device_hangs() -> None:
    device = NullDevice(asynchronous=True)
    backend, buffer = device.open(), device.buffer_type.alloc(4)
    backend.write_async(buffer, 0, memoryview(b"data"))
    device.hang(limit=SOON)

    device.close(force=True)

    assert backend.closed
    assert buffer.closed
