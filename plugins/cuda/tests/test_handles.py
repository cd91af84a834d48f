"""Streams and events live until the last reference to them is gone; emulated.

In the stand-in for CuPy every use of a destroyed stream or event is a fault of the machine.
"""

import gc
import os
import sys

import numpy as np
import pytest

from tensorplug_testing.forked import error_in_child


@pytest.fixture
def handles(machine):
    from tensorplug_cuda import handles

    return handles


@pytest.fixture
def unraisable(monkeypatch):
    """Errors that finalizers raise during the test."""
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: seen.append(str(args.exc_value)))
    return seen


class Finalized:
    """An object in a garbage cycle whose finalizer waits for the stream or event `what`."""

    def __init__(self, waited):
        self.waited = waited
        self.what = None
        self.cycle = self

    def __del__(self):
        self.what.synchronize()
        self.waited.append(int(self.what.ptr))


def living(machine):
    """The handles of all streams and events that are not destroyed."""
    return {*machine.queues, *machine.events}


KINDS = {"stream": lambda handles: handles.new_stream(), "event": lambda handles: handles.Mark()}
any_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


@any_kind
def test_garbage_collector_does_not_track_handles(handles, make):
    assert not gc.is_tracked(make(handles).ptr)


@any_kind
def test_handle_is_destroyed_with_the_last_reference(handles, machine, make):
    what = make(handles)
    handle = what.ptr
    number = int(handle)

    del what
    during = number in living(machine)
    del handle

    assert during
    assert number not in living(machine)


@any_kind
@pytest.mark.parametrize("order", [("waits", "made"), ("made", "waits")], ids=" before ".join)
def test_finalizers_in_garbage_wait_for_streams_and_events(handles, machine, make, order):
    waited = []
    makers = {"waits": lambda: Finalized(waited), "made": lambda: make(handles)}
    objects = {name: makers[name]() for name in order}
    objects["waits"].what = objects["made"]
    number = int(objects["made"].ptr)

    objects.clear()
    gc.collect()

    assert waited == [number]
    assert number not in living(machine)


def test_stream_of_cupy_in_garbage_is_destroyed_too_early(machine, unraisable):
    from cupy import cuda

    theirs = cuda.Stream(non_blocking=True)
    waits = Finalized([])
    waits.what, theirs.cycle = theirs, waits

    del theirs, waits
    gc.collect()

    assert ["InvalidResourceHandle" in text for text in unraisable] == [True]
    assert machine.faults == ["a destroyed stream was used"]
    machine.faults.clear()


@pytest.mark.parametrize("streams", [1, 2])
def test_backend_in_garbage_waits_for_its_work(device, machine, unraisable, streams):
    before, target = set(machine.queues), np.zeros(16, np.uint8)
    buffer = device.buffer_type.alloc(16)
    buffer.fill(7)
    backend = device.open(streams=streams)
    backend.profile = True
    backend.read_async(buffer, 0, memoryview(target))
    held = [backend, buffer, backend.record()]
    held.append(held)

    del backend, buffer, held
    gc.collect()

    assert set(target) == {7}
    assert set(machine.queues) - before <= {device._stream.ptr}
    assert machine.events == {}
    assert unraisable == []


def test_device_in_garbage_waits_for_its_work(devices, machine, unraisable):
    (device,) = devices()
    target = np.zeros(16, np.uint8)
    buffer = device.buffer_type.alloc(16)
    buffer.fill(7)
    backend = device.open()
    backend.read_async(buffer, 0, memoryview(target))
    held = [buffer, backend, device]
    held.append(held)

    del device, backend, buffer, held
    gc.collect()

    assert set(target) == {7}
    assert living(machine) == set()
    assert unraisable == []


def test_pinned_memory_in_garbage_is_given_back_after_its_transfers(device, machine, unraisable):
    buffer, pinned = device.buffer_type.alloc(16), device.host_buffer_type.alloc(16)
    backend, address = device.open(), pinned.host().ctypes.data
    backend.read_async(buffer, 0, memoryview(pinned.host()[:16]))
    held = [pinned, backend, buffer]
    held.append(held)

    del buffer, pinned, backend, held
    gc.collect()

    assert machine.find(address) is None
    assert machine.gpus[0].error is None
    assert unraisable == []


@any_kind
def test_lost_gpu_makes_no_finalizer_fail(handles, machine, monkeypatch, unraisable, make):
    from cupy.cuda import runtime

    def fails(_handle):
        raise runtime.CUDARuntimeError(719, "a kernel failed")

    what = make(handles)
    monkeypatch.setattr(runtime, "streamDestroy", fails)
    monkeypatch.setattr(runtime, "eventDestroy", fails)

    del what

    assert len(living(machine)) == 1
    assert unraisable == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_forked_child_does_not_destroy_streams_and_events_of_its_parent(handles, machine):
    held = [make(handles) for make in KINDS.values()]
    both = living(machine)

    def drop():
        held.clear()
        if living(machine) != both:
            raise AssertionError("the driver was called")

    assert error_in_child(drop) == ""
    assert len(both) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_forked_child_destroys_its_own_streams_and_events(handles, machine, monkeypatch):
    # As in a process that has not used the driver before the fork.
    monkeypatch.setattr(handles._driver, "used", False)

    def work():
        for make in KINDS.values():
            make(handles)
        if living(machine):
            raise AssertionError("streams or events are left behind")

    assert error_in_child(work) == ""
