"""The asynchronous suite passes on sound devices and catches those with a fault."""

import re
from functools import partial
from pathlib import Path

import pytest

import tensorplug as tp
from tensorplug_testing.null import NullDevice
from tensorplug_testing.suites.asynchronous import AsyncTests
from tensorplug_testing.suites.queued import QueuedTests
from tensorplug_testing.timeline import NullEvent


class TestAsync(AsyncTests):
    """Every test of the suite on every device of the folder."""

    def break_next_op(self, device: tp.Device) -> bool:
        if isinstance(device, NullDevice):
            device.fail("compute")
        return isinstance(device, NullDevice)


# --- planted faults ----------------------------------------------------------------------------


def device_with(event: type[NullEvent] = NullEvent, **members):
    """Makes devices whose streams have members replaced, and mark with another kind of event."""
    mark = {"mark": lambda self: event(self._stream, self.device.family)}

    def make() -> NullDevice:
        device = NullDevice("faulty:0", asynchronous=True)
        device.backend_class = type("Faulty", (device.backend_class,), {**mark, **members})
        return device

    return make


class Unordered(NullEvent):
    """Ends no wait of the host."""

    def synchronize(self) -> None:
        pass


class TooEarly(NullEvent):
    """Stands before the last thing that was queued."""

    def __init__(self, stream, family) -> None:
        super().__init__(stream, family)
        self._position -= 1


class AlwaysDone(NullEvent):
    """Says that it is reached, whatever is still queued."""

    done = True


class NeverDone(NullEvent):
    """Says that it is not reached."""

    done = False


def nothing(self, *_) -> None:
    """Do nothing."""


def accept(self, event) -> bool:
    return True


def compute_at_once(self, node, bindings):
    self.device.compute(node, bindings)


def compute_before_the_rest(self, node, bindings):
    self._stream._jobs.appendleft((partial(self.device.compute, node, bindings), None))


def write_before_the_rest(self, buffer, offset, data):
    self._stream._jobs.appendleft((partial(buffer.write, offset, data), None))


def read_at_once(self, buffer, offset, out):
    buffer.read_into(offset, out)


def copy_at_once(self, source, start, target, size):
    source.synchronize()
    target.buffer.take_copy(start.buffer, start.offset, target.offset, size)
    return True


def copy_without_waiting(self, source, start, target, size):
    self.queue(partial(target.buffer.take_copy, start.buffer, start.offset, target.offset, size))
    return True


def copy_refused(self, source, start, target, size):
    return False


def swallow(self):
    self.mark().synchronize()
    self._stream.take_error()


def raise_for_ever(self):
    self.mark().synchronize()
    if self._stream._error is not None:
        raise self._stream._error


FAULTS = {
    "wait that ends too early": (
        device_with(_synchronize=nothing),
        "test_work_is_done_once_synchronize_returns",
    ),
    "close that does not wait": (
        device_with(_synchronize=nothing),
        "test_closing_waits_for_queued_work",
    ),
    "drain that does not wait": (
        device_with(_synchronize=nothing),
        "test_drain_waits_for_all_streams",
    ),
    "work done before what was queued": (
        device_with(_compute=compute_before_the_rest),
        "test_stream_does_plans_in_the_order_of_their_runs",
    ),
    "work done at once": (
        device_with(_compute=compute_at_once),
        "test_transfers_keep_their_place_among_the_work",
    ),
    "queued write before the rest": (
        device_with(write_async=write_before_the_rest),
        "test_transfers_keep_their_place_among_the_work",
    ),
    "queued read at once": (
        device_with(read_async=read_at_once),
        "test_transfers_keep_their_place_among_the_work",
    ),
    "queued write that is never done": (
        device_with(write_async=nothing),
        "test_queued_write_has_arrived_after_synchronize",
    ),
    "event that orders nothing": (
        device_with(wait=nothing),
        "test_stream_that_waits_starts_after_the_event",
    ),
    "event that orders nothing, over several streams": (
        device_with(wait=nothing),
        "test_waits_pass_from_stream_to_stream",
    ),
    "event before the last op": (
        device_with(TooEarly),
        "test_event_is_reached_once_the_host_has_waited_for_it",
    ),
    "event before the last queued read": (
        device_with(TooEarly),
        "test_host_memory_is_the_callers_again_once_an_event_behind_it_is_reached",
    ),
    "event that the host does not wait for": (
        device_with(Unordered, _synchronize=lambda self: NullEvent(self._stream, "").synchronize()),
        "test_event_is_reached_once_the_host_has_waited_for_it",
    ),
    "event that is never reached": (
        device_with(NeverDone, _synchronize=lambda self: NullEvent(self._stream, "").synchronize()),
        "test_event_is_reached_once_its_stream_was_waited_for",
    ),
    "event that is reached too early": (
        device_with(AlwaysDone),
        "test_event_is_not_reached_before_its_work_is_done",
    ),
    "foreign events accepted": (
        device_with(accepts=accept),
        "test_events_of_its_own_are_accepted_and_foreign_ones_are_not",
    ),
    "copy that does not wait for its source": (
        device_with(copy_async=copy_without_waiting),
        "test_copy_starts_after_the_source_and_before_the_target",
    ),
    "copy made while the target still reads": (
        device_with(copy_async=copy_at_once),
        "test_copy_leaves_alone_what_the_target_still_reads",
    ),
    "copy refused between one's own streams": (
        device_with(copy_async=copy_refused),
        "test_copy_between_streams_of_the_device_is_queued",
    ),
    "queued write before the rest, of host memory in which a stream computes": (
        device_with(write_async=write_before_the_rest),
        "test_copy_from_host_memory_keeps_its_place_among_the_work",
    ),
    "host memory given back before it is read": (
        device_with(_synchronize=nothing),
        "test_copy_from_host_memory_keeps_its_place_among_the_work",
    ),
    "queued read at once, to host memory in which a stream computes": (
        device_with(read_async=read_at_once),
        "test_copy_to_host_memory_is_there_for_who_computes_in_it",
    ),
    "queued read at once, for another device": (
        device_with(read_async=read_at_once),
        "test_copies_through_the_host_keep_their_place_among_the_work",
    ),
    "error of queued work swallowed": (
        device_with(_synchronize=swallow),
        "test_error_of_queued_work_is_raised_once_and_the_stream_goes_on",
    ),
    "error raised by every wait": (
        device_with(_synchronize=raise_for_ever),
        "test_error_of_queued_work_is_raised_once_and_the_stream_goes_on",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught(failures, monkeypatch, fault: str) -> None:
    make_device, test = FAULTS[fault]
    monkeypatch.setattr(AsyncTests, "break_next_op", TestAsync.break_next_op)

    assert failures(AsyncTests, make_device, test) == {test}


DOCUMENT = Path(__file__).parents[2] / "docs" / "async.md"


@pytest.mark.skipif(not DOCUMENT.exists(), reason="the documents are not here")
def test_every_line_of_the_written_contract_names_a_test_and_every_test_is_named() -> None:
    named = re.findall(r"`(test_\w+)`", DOCUMENT.read_text(encoding="utf-8"))

    tests = {*dir(AsyncTests), *dir(QueuedTests)}
    assert sorted(named) == sorted(name for name in tests if name.startswith("test_"))
