"""Streams, events, failures and captures; emulated.

Emulated queues do nothing until something waits for them, so that missing waits are noticed.
"""

from collections import deque

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import DeviceError, OutOfMemory, order_after
from tensorplug.errors import RunFailed
from tensorplug_emulator import missing
from tensorplug_emulator.suites.devices import StreamTests

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

DATA = np.arange(16, dtype=np.uint8)
X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(params=["shared", "private"])
def filled(request, device):
    """Makes buffers of 16 bytes of a kind of memory."""
    kind = device.buffer_type if request.param == "shared" else device.private

    def make(value=0):
        buffer = kind.alloc(16)
        buffer.fill(value)
        return buffer

    return make


def keep_busy(stream):
    """Queue work that is not done until something waits for it."""
    other = stream.device.private.alloc(16)
    stream.write_async(other, 0, DATA.data)
    return other


class TestStreams(StreamTests):
    """What every stand-in's streams are tested for, on both kinds of memory."""

    @pytest.fixture
    def filled(self, filled):
        return filled

    def keep_busy(self, stream):
        return keep_busy(stream)


def test_event_of_a_stream_with_nothing_to_do_is_reached(device, machine):
    with device.open() as stream:
        event = stream.record()

        assert event.done
        assert machine.commits == 1  # the probe's


def test_bytes_that_were_read_are_there_when_the_event_behind_is_reached(device, filled):
    buffer, seen = filled(5), np.zeros(16, np.uint8)
    with device.open() as stream:
        keep = keep_busy(stream)
        stream.read_async(buffer, 0, seen.data)
        event = stream.record()
        before = seen.copy()

        event.synchronize()
        del keep

    assert not before.any()
    assert set(seen.tolist()) == {5}


def test_host_memory_may_change_once_it_is_queued_to_be_written(device, filled):
    buffer, data = filled(), DATA.copy()
    with device.open() as stream:
        keep = keep_busy(stream)
        stream.write_async(buffer, 0, data.data)
        data[:] = 0
        stream.synchronize()
        del keep

    assert buffer.read(0, 16).tolist() == DATA.tolist()


def test_copy_starts_after_the_work_of_its_source(device, filled):
    here, there = filled(), filled()
    with device.open() as one, device.open() as two:
        keep = keep_busy(one)
        one.write_async(here, 0, DATA.data)
        taken = two.copy_async(one, tp.Place(here, 4), tp.Place(there, 8), 8)
        two.synchronize()
        del keep

    assert taken
    assert there.read(0, 16).tolist() == [*[0] * 8, *DATA[4:12].tolist()]


@pytest.mark.parametrize(("start", "target", "size"), [(0, 4, 8), (1, 8, 4), (0, 8, 3)])
def test_copies_over_themselves_and_of_no_whole_words_are_left_to_others(
    stream, filled, start, target, size
):
    buffer = filled()
    there, here = tp.Place(buffer, start), tp.Place(buffer, target)

    assert not stream.copy_async(stream, there, here, size)


def test_streams_of_two_gpus_wait_for_each_other(devices, machine):
    machine.reset(gpus=2)
    first, second = devices()
    with first, second, first.open() as one, second.open() as two:
        buffer, seen = second.private.alloc(16), np.zeros(16, np.uint8)
        two.write_async(buffer, 0, DATA.data)
        order_after(two, one)
        keep = keep_busy(one)
        one.synchronize()
        two.read_async(buffer, 0, seen.data)
        two.synchronize()
        del keep

    assert seen.tolist() == DATA.tolist()


def test_cpu_and_gpu_work_on_the_same_bytes_without_copies(stream):
    x = tp.input("x", (2, 4), tp.F32)
    first = tp.scale(x, 2.0)
    y = tp.relu(tp.map_custom1(first, lambda out, given: np.add(given, 1.0, out=out)))
    pages = stream.device.host_buffer_type
    with (
        tp.open("cpu@tensorplug-cpu") as cpu,
        tp.Scheduler([stream, cpu], buffer_types={cpu: pages}) as scheduler,
        scheduler.schedule(y, pins={first: stream, y: stream}) as run,
    ):
        explained = str(run.explain())
        got = [run.run({x: X + i})[y] for i in range(3)]

    assert "3 nodes in 3 splits, 0 B copied per run" in explained
    for i, each in enumerate(got):
        np.testing.assert_array_equal(each, 2 * (X + i) + 1)


# --- failures ----------------------------------------------------------------------------------


def doubled(stream):
    """Compute twice some numbers."""
    x = tp.input("x", (2, 4), tp.F32)
    y = tp.scale(x, 2.0)
    with tp.Scheduler([stream]).schedule(y) as run:
        return run.run({x: X})[y]


@pytest.mark.parametrize(
    ("code", "kind"), [(1, DeviceError), (8, OutOfMemory), (11, tp.DeviceLost), (2, DeviceError)]
)
def test_failed_command_buffer_is_an_error_of_its_kind(stream, machine, code, kind):
    keep = keep_busy(stream)
    machine.fail_next = code

    with pytest.raises(kind, match="metal:0: as the test asked for"):
        stream.synchronize()
    del keep


def test_stream_takes_no_work_after_a_failure_and_a_new_one_does(device, machine):
    with device.open() as stream:
        keep = keep_busy(stream)
        machine.fail_next = 1
        with pytest.raises(DeviceError):
            stream.synchronize()
        del keep

        with pytest.raises(DeviceError) as error:
            doubled(stream)

    assert "takes no more work, because a command buffer failed" in str(error.value.__cause__)
    assert "open another stream" in str(error.value.__cause__)
    with device.open() as other:
        np.testing.assert_array_equal(doubled(other), 2 * X)


def test_failure_is_known_before_anybody_waits(stream, machine):
    keep = keep_busy(stream)
    machine.fail_next = 1

    failed = stream.has_failed

    assert failed
    with pytest.raises(DeviceError):
        stream.synchronize()
    del keep


def wait_for_stream(stream):
    stream.synchronize()


def wait_for_event(stream):
    stream.record().synchronize()


@pytest.mark.parametrize("wait", [wait_for_stream, wait_for_event])
@pytest.mark.parametrize("between", [0, 1], ids=["directly", "over another"])
def test_stream_that_waits_for_one_that_fails_does_not_wait_for_good(
    device, machine, monkeypatch, wait, between
):
    with device.open() as bad, device.open() as good, device.open() as middle:
        keep = keep_busy(bad)
        event = first = bad.record()
        with monkeypatch.context() as unseen:
            # Looking at an event lets the emulated GPU go on.
            unseen.setattr(type(event), "done", False)
            for stream in [middle][:between]:
                stream.wait(event)
                event = stream.record()
            good.wait(event)
        # The command buffer with the signal fails, so that it is never given.
        first.commands.queue.order[0].waitUntilCompleted()
        first.commands.has_work = True
        machine.fail_next = 1

        wait(good)

        # The emulated GPU fails a wait that never ends.
        good.synchronize()
        middle.synchronize()
        with pytest.raises(DeviceError):
            bad.synchronize()
        del keep


def test_transfers_go_on_after_one_has_failed(device, machine):
    with device.private.alloc(16) as buffer:
        machine.fail_next = 1
        with pytest.raises(DeviceError, match="metal:0 transfers: as the test asked for"):
            buffer.write(0, DATA)

        buffer.write(0, DATA)

        assert buffer.read(0, 16).tolist() == DATA.tolist()


def test_command_buffer_that_metal_does_not_make_is_an_error_and_no_more(stream, machine):
    machine.no_buffers = 1

    with pytest.raises(RunFailed) as error:
        doubled(stream)

    assert "Metal makes no command buffer" in str(error.value.__cause__)
    np.testing.assert_array_equal(doubled(stream), 2 * X)


# --- looking on --------------------------------------------------------------------------------


def test_next_run_is_captured_for_xcode(stream, machine, tmp_path):
    stream.capture_next(str(tmp_path / "run.gputrace"))
    before = len(machine.captures.made)
    for _ in range(2):
        doubled(stream)

    (made,) = machine.captures.made
    assert before == 0
    assert made.subject is stream.work.handle
    assert made.url.path() == str(tmp_path / "run.gputrace")


def test_system_that_captures_nothing_says_what_to_set(stream, machine, tmp_path):
    machine.captures.supported = False

    with pytest.raises(tp.Unsupported, match="set METAL_CAPTURE_ENABLED=1 before Python starts"):
        stream.capture_next(str(tmp_path / "run.gputrace"))


def test_trace_that_exists_is_not_overwritten(stream, tmp_path):
    (tmp_path / "run.gputrace").touch()

    with pytest.raises(tp.Unsupported, match="exists, and Metal overwrites no trace"):
        stream.capture_next(str(tmp_path / "run.gputrace"))


def test_profiled_work_is_timed_launch_by_launch(stream):
    stream.profile = True
    doubled(stream)

    spans = stream.take_spans()

    assert "scale" in [span.name for span in spans]
    assert all(span.start <= span.end for span in spans)
    assert list(stream.take_spans()) == []


@pytest.mark.parametrize("count", [0, 9, -1])
def test_number_of_command_buffers_has_bounds(stream, count):
    told = f"option command_buffers={count}; choose from 1, 2, 3, 4, 5, 6, 7, 8"
    with pytest.raises(tp.OptionError, match=told):
        stream.command_buffers = count


# --- the collector of garbage ------------------------------------------------------------------


def test_buffer_that_is_collected_while_another_is_added_stops_nobody(device, monkeypatch):
    dropped = [device.buffer_type.alloc(64)]
    kept = type(device.residency._set)
    real = kept.addAllocation_

    def add(known, buffer):
        dropped.clear()
        real(known, buffer)

    monkeypatch.setattr(kept, "addAllocation_", add)

    with device.buffer_type.alloc(64) as buffer:
        assert [each.length() for each in device.residency._set.resident] == [64]
        assert buffer.size == 64


def test_buffer_that_is_collected_while_bytes_land_stops_nobody(device, stream):
    dropped, seen = [device.private.alloc(64)], np.zeros(16, np.uint8)

    class Dropping(deque):
        def __getitem__(self, place):
            found = super().__getitem__(place)
            dropped.clear()
            return found

    with device.private.alloc(16) as buffer:
        buffer.fill(7)
        stream.read_async(buffer, 0, seen.data)
        stream._landings = Dropping(stream._landings)

        stream.synchronize()

    assert set(seen.tolist()) == {7}
    assert dropped == []
