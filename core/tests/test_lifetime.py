"""Closing of resources: order, children, and use after close."""

import gc
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Resource, allocate
from tensorplug.device.lifetime import Turnstile
from tensorplug.errors import Closed, ConcurrentUse, LiveChildren, SchedulerBusy
from tensorplug.graph.tensor import leaf
from tensorplug_testing.null import NullDevice


class Thing(Resource):
    """A resource that writes down when it is closed."""

    def __init__(self, name: str, diary: list[str], parent: Resource | None = None) -> None:
        super().__init__(parent)
        self.name = name
        self.diary = diary

    def _finish(self) -> None:
        self.diary.append(f"finish {self.name}")

    def _close(self) -> None:
        self.diary.append(f"close {self.name}")

    def __repr__(self) -> str:
        return f"<Thing {self.name}>"


def test_close_finishes_queued_work_before_it_gives_memory_back() -> None:
    diary: list[str] = []

    Thing("a", diary).close()

    assert diary == ["finish a", "close a"]


def test_second_close_does_nothing() -> None:
    diary: list[str] = []
    thing = Thing("a", diary)
    thing.close()

    thing.close()

    assert diary == ["finish a", "close a"]


def test_parent_with_living_children_refuses_to_close_and_names_them() -> None:
    parent = Thing("parent", [])
    first, second = Thing("first", [], parent), Thing("second", [], parent)

    with pytest.raises(LiveChildren) as error:
        parent.close()

    assert str(error.value) == (
        "<Thing parent>: 2 children are open: <Thing first>, <Thing second>; close them "
        "first, or use close(force=True)"
    )
    assert not parent.closed
    assert parent.children == [first, second]


def test_one_living_child_is_counted_in_the_singular() -> None:
    parent = Thing("parent", [])
    child = Thing("child", [], parent)

    with pytest.raises(LiveChildren, match="1 child is open: <Thing child>"):
        parent.close()

    assert not child.closed


def test_parent_closes_once_its_children_are_closed() -> None:
    parent = Thing("parent", [])
    child = Thing("child", [], parent)
    child.close()

    parent.close()

    assert parent.closed


def test_force_closes_children_newest_first() -> None:
    diary: list[str] = []
    parent = Thing("parent", diary)
    children = [Thing(name, diary, parent) for name in "abc"]

    parent.close(force=True)

    assert [line for line in diary if line.startswith("close")] == [
        "close c",
        "close b",
        "close a",
        "close parent",
    ]
    assert all(child.closed for child in children)


def test_with_closes_and_takes_the_children_along() -> None:
    with Thing("parent", []) as parent:
        child = Thing("child", [], parent)

    assert parent.closed
    assert child.closed


def test_child_of_a_closed_parent_is_refused_and_leaves_no_finalizer_behind() -> None:
    diary: list[str] = []
    parent = Thing("parent", diary)
    parent.close()
    diary.clear()

    with pytest.raises(Closed, match=re.escape("<Thing parent>: is closed; make a new one")):
        Thing("child", diary, parent)

    gc.collect()
    assert diary == []


def test_entering_a_closed_resource_is_refused() -> None:
    thing = Thing("a", [])
    thing.close()

    with pytest.raises(Closed):
        thing.__enter__()


def test_child_keeps_its_parent_alive() -> None:
    diary: list[str] = []
    child = Thing("child", diary, Thing("parent", diary))

    gc.collect()

    assert diary == []
    assert child.parent is not None


def test_dropped_child_is_given_back_and_forgotten() -> None:
    diary: list[str] = []
    parent = Thing("parent", diary)
    child = Thing("child", diary, parent)

    del child
    gc.collect()

    assert diary == ["finish child", "close child"]
    parent.close()


def test_garbage_in_a_cycle_closes_children_before_their_parent() -> None:
    diary: list[str] = []
    parent = Thing("parent", diary)
    children = [Thing(name, diary, parent) for name in "ab"]
    parent.cycle = children  # type: ignore[attr-defined]  # what makes it a cycle

    del parent, children
    gc.collect()

    closed = [line for line in diary if line.startswith("close")]
    assert sorted(closed[:2]) == ["close a", "close b"]
    assert closed[2:] == ["close parent"]


def test_finalizer_swallows_what_closing_raises() -> None:
    class Broken(Resource):
        def _close(self) -> None:
            raise RuntimeError("driver gone")

    thing = Broken()

    del thing

    gc.collect()  # pytest turns an unraisable error into a failure


def test_resource_is_closed_though_waiting_for_its_work_fails() -> None:
    class Failing(Thing):
        def _finish(self) -> None:
            raise tp.DeviceLost("gone")

    diary: list[str] = []
    thing = Failing("a", diary)

    with pytest.raises(tp.DeviceLost):
        thing.close()

    assert thing.closed
    assert diary == ["close a"]


def test_finalizers_call_nothing_at_interpreter_exit() -> None:
    program = """
from tensorplug.device import Resource

class Thing(Resource):
    def _close(self):
        print("closed")

kept = Thing()
kept.cycle = kept
"""

    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert out.stdout == ""
    assert out.stderr == ""


def test_concurrent_closes_give_back_once() -> None:
    diary: list[str] = []
    thing = Thing("a", diary)
    gate = threading.Barrier(4)

    def close() -> None:
        gate.wait()
        thing.close()

    threads = [threading.Thread(target=close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert diary.count("close a") == 1


# --- what devices, streams and buffers make of it ----------------------------------------------


def test_device_names_its_open_streams_and_buffers() -> None:
    device = NullDevice()
    backend = device.open()
    buffer = device.buffer_type.alloc(64)

    with pytest.raises(LiveChildren) as error:
        device.close()

    assert str(error.value) == (
        "<NullDevice null:0>: 2 children are open: <NullBackend null:0>, "
        "<NullBuffer null:0, ANY 64 B>; close them first, or use close(force=True)"
    )
    backend.close()
    buffer.close()
    device.close()


def test_closed_things_say_so_and_never_touch_the_device() -> None:
    device = NullDevice()
    backend, buffer = device.open(), device.buffer_type.alloc(64)
    plan = backend.plan(tp.Part.of(tp.Graph(tp.input("x", (1,), tp.F32)), tp.Bindings()))
    device.lose()

    device.close(force=True)

    assert repr(plan) == "<NodePlan null:0, closed>"
    assert repr(backend) == "<NullBackend null:0, closed>"
    assert repr(buffer) == "<NullBuffer null:0, closed>"
    assert repr(device) == "<NullDevice null:0, closed>"


def test_closed_device_opens_and_allocates_nothing(null: NullDevice) -> None:
    null.close()

    with pytest.raises(Closed):
        null.open()
    with pytest.raises(Closed):
        null.buffer_type.alloc(1)


@pytest.mark.parametrize(
    "use",
    [
        lambda b: b.write(0, b"1"),
        lambda b: b.read(0, 1),
        lambda b: b.fill(0),
        lambda b: b.write_2d(0, b"1", row=1, stride=1),
        lambda b: b.read_2d(0, 1, row=1, stride=1),
        lambda b: b.host(),
    ],
)
def test_closed_buffer_cannot_be_used(host: NullDevice, use) -> None:
    buffer = host.buffer_type.alloc(64)
    buffer.close()

    with pytest.raises(Closed, match="<NullBuffer host:0, closed>: is closed"):
        use(buffer)


def test_closed_plan_and_stream_cannot_be_used(null: NullDevice) -> None:
    backend = null.open()
    plan = backend.plan(tp.Part.of(tp.Graph(tp.input("x", (1,), tp.F32)), tp.Bindings()))
    backend.close(force=True)

    with pytest.raises(Closed):
        plan.run()
    with pytest.raises(Closed):
        plan.rebind(plan.bound)
    with pytest.raises(Closed):
        backend.synchronize()
    with pytest.raises(Closed):
        backend.plan(plan.bound)


def test_dropped_buffer_gives_its_memory_back(null: NullDevice) -> None:
    buffer = null.buffer_type.alloc(64)

    del buffer
    gc.collect()

    assert null.live_buffers == 0
    assert null.used == 0


def test_tensors_keep_their_buffers_when_the_multi_buffer_is_dropped(null: NullDevice) -> None:
    tensors, whole = allocate([leaf("x", (4,), tp.F32)], null.buffer_type)

    del whole
    gc.collect()

    assert null.live_buffers == 1
    del tensors
    gc.collect()
    assert null.live_buffers == 0


def test_buffer_closed_while_queued_work_reads_it_is_freed_after_that_work(
    late: NullDevice,
) -> None:
    backend = late.open()
    x = backend.place("x", np.ones(4, np.float32))
    out = late.buffer_type.alloc(64)
    y = tp.scale(x, 2.0)
    bindings = tp.Bindings({y: tp.Place(out, 0)})
    plan = backend.plan(tp.Part.of(tp.Graph(y), bindings))
    plan.run()

    x.place.buffer.close()

    assert late.computed == ["scale"]
    np.testing.assert_array_equal(out.read(0, 16).view(np.float32), [2, 2, 2, 2])
    assert late.log[-2:] == [("free", 64), ("read", 16)]


def test_buffer_closed_while_a_read_is_queued_is_freed_after_that_read(late: NullDevice) -> None:
    backend = late.open()
    seen = np.zeros(4, np.float32)
    buffer = late.buffer_type.alloc(16)
    buffer.write(0, np.ones(4, np.float32))
    backend.read_async(buffer, 0, seen.view(np.uint8).data)

    buffer.close()

    np.testing.assert_array_equal(seen, np.ones(4))


def test_failed_work_does_not_keep_a_buffer_from_closing_and_is_reported_later(
    late: NullDevice,
) -> None:
    backend = late.open()
    buffer = late.buffer_type.alloc(64)
    late.fail("write")
    backend.write_async(buffer, 0, memoryview(b"data"))

    buffer.close()

    assert late.live_buffers == 0
    with pytest.raises(tp.DeviceError, match="late:0: write failed as the test planned"):
        backend.synchronize()
    backend.synchronize()


def test_closing_a_stream_finishes_its_work(late: NullDevice) -> None:
    backend = late.open()
    buffer = late.buffer_type.alloc(4)
    backend.write_async(buffer, 0, memoryview(b"data"))

    backend.close()

    assert buffer.read(0, 4).tobytes() == b"data"


def test_everything_closes_after_the_device_is_lost(late: NullDevice) -> None:
    backend = late.open()
    buffer = late.buffer_type.alloc(4)
    backend.write_async(buffer, 0, memoryview(b"data"))
    late.lose()

    late.close(force=True)

    assert buffer.closed
    assert backend.closed


# --- turnstiles --------------------------------------------------------------------------------


def test_turnstile_lets_one_through_at_a_time() -> None:
    turnstile = Turnstile("plan on null:0")

    with turnstile:
        pass
    with turnstile:
        pass


def test_turnstile_raises_for_the_second() -> None:
    turnstile = Turnstile("plan on null:0")

    with turnstile, pytest.raises(ConcurrentUse) as error, turnstile:
        pass

    assert str(error.value) == (
        "plan on null:0: entered while another thread or call runs it; give each thread its own"
    )


def test_turnstile_raises_the_error_it_was_given() -> None:
    turnstile = Turnstile("schedule", SchedulerBusy)

    with turnstile, pytest.raises(SchedulerBusy), turnstile:
        pass


def test_turnstile_opens_again_after_an_error() -> None:
    turnstile = Turnstile("plan")
    with pytest.raises(ValueError, match="inside"), turnstile:
        raise ValueError("inside")

    with turnstile:
        pass
