"""Streams and plans: what runs, in which order, by how many at a time."""

import threading
from collections.abc import Callable

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import transfer
from tensorplug.device import Plan
from tensorplug.device.plan import NodePlan
from tensorplug.errors import Closed, ConcurrentUse
from tensorplug.graph.tensor import Place
from tensorplug_testing.null import NullDevice
from tensorplug_testing.timeline import Timeline


def bound(y: tp.Tensor, device: NullDevice, *others: tp.Tensor) -> tp.Part:
    """`y` with every root in a buffer of its own."""
    graph = tp.Graph(y)
    roots = {t.root for t in (*graph.leafs, *graph.nodes, *others) if t.root.place is None}
    return tp.Part.of(
        graph, tp.Bindings({t: Place(device.buffer_type.alloc(t.nbytes), 0) for t in roots})
    )


def x_(*shape: int, name: str = "x") -> tp.Tensor:
    return tp.input(name, shape, tp.F32)


# --- plans -------------------------------------------------------------------------------------


def test_default_plan_computes_the_nodes_in_order(null: NullDevice) -> None:
    x = x_(2, 2)
    y = tp.relu((x @ x.T) + x)
    what = bound(y, null)
    transfer.write(x, [[1, -2], [3, 4]], what.bindings)

    with null.open() as backend:
        backend.compute(what)

    assert null.computed == ["mul_mat", "add", "relu"]
    assert transfer.read(y, what.bindings).tolist() == [[6, 0], [0, 29]]


def test_default_plan_skips_views_and_empty_nodes(null) -> None:
    x = x_(4)
    empty = tp.relu(x[:0])
    y = tp.relu(x[1:])
    places = {t: Place(null.buffer_type.alloc(64), 0) for t in (x, y)}

    with null.open() as backend:
        backend.compute(tp.Part.of(tp.Graph(y), tp.Bindings(places)))
        backend.compute(tp.Part.of(tp.Graph(empty), tp.Bindings(places)))

    assert null.computed == ["relu"]


def test_plan_runs_as_often_as_it_is_asked(null: NullDevice) -> None:
    x = x_(4)
    y = x * 2.0
    what = bound(y, null)

    with null.open() as backend, backend.plan(what) as plan:
        for value in (1, 2, 3):
            transfer.write(x, np.full(4, value), what.bindings)
            plan.run()
            assert transfer.read(y, what.bindings).tolist() == [2 * value] * 4


def test_plan_takes_other_places(null: NullDevice) -> None:
    x = x_(4)
    y = x * 2.0
    here, there = bound(y, null), bound(y, null)
    transfer.write(x, np.ones(4), here.bindings)
    transfer.write(x, np.full(4, 5), there.bindings)

    with null.open() as backend, backend.plan(here) as plan:
        plan.rebind(here.bind(there.bindings))
        plan.run()

    assert transfer.read(y, there.bindings).tolist() == [10] * 4


@pytest.mark.parametrize("which", ["read", "written"])
def test_plan_does_not_run_over_memory_that_was_closed(null: NullDevice, which: str) -> None:
    x = x_(4)
    y = tp.relu(x)
    memory = {"read": null.buffer_type.alloc(64), "written": null.buffer_type.alloc(64)}
    places = {x: Place(memory["read"], 0), y: Place(memory["written"], 0)}

    with null.open() as backend:
        plan = backend.plan(tp.Part.of(tp.Graph(y), tp.Bindings(places)))
        plan.run()
        memory[which].close()
        with pytest.raises(Closed) as error:
            plan.run()

    assert str(error.value) == "<NullBuffer null:0, closed>: is closed; make a new one"
    assert null.computed == ["relu"]


def test_plan_takes_another_graph_of_the_same_structure_only(null: NullDevice) -> None:
    first, same, other = (bound(make(x_(4)), null) for make in (tp.relu, tp.relu, tp.sqr))

    with null.open() as backend, backend.plan(first) as plan:
        plan.rebind(same)
        assert plan.bound is same
        with pytest.raises(tp.GraphError) as error:
            plan.rebind(other)

    assert str(error.value) == (
        "<NodePlan null:0, 1 nodes>: cannot run <Part 1 nodes, 1 leafs>, which "
        "has another structure; plan it"
    )


def test_planning_what_the_device_cannot_do_tells_why(null: NullDevice) -> None:
    y = tp.rms_norm(x_(4))

    with null.open() as backend, pytest.raises(tp.Unsupported) as error:
        backend.plan(bound(y, null))

    assert str(error.value) == f"{y}: cannot run here: null:0: no kernel for rms_norm"


def test_backend_that_makes_its_plans_by_itself_is_asked_for_supported_graphs_only(null) -> None:
    asked: list[tp.Part] = []

    class Planning(type(null.open())):
        def _plan(self, bound):
            asked.append(bound)
            return NodePlan(self, bound)

    null.backend_class = Planning
    refused, taken = bound(tp.rms_norm(x_(4)), null), bound(tp.relu(x_(4)), null)

    with null.open() as backend:
        with pytest.raises(tp.Unsupported, match="no kernel for rms_norm"):
            backend.plan(refused)
        backend.plan(taken)

        assert asked == [taken]


@pytest.mark.parametrize(("nodes", "named"), [(1, True), (2, False)])
def test_error_of_a_plan_of_ones_own_names_the_node_where_there_is_but_one(
    null, nodes: int, named: bool
) -> None:
    class Failing(NodePlan):
        def _run(self):
            raise tp.DeviceError("null:0: out of registers")

    y = x_(4)
    for _ in range(nodes):
        y = tp.relu(y)
    null.backend_class = type("Planning", (null.backend_class,), {"plan_class": Failing})

    with null.open() as backend, backend.plan(bound(y, null)) as plan:
        with pytest.raises(tp.DeviceError) as error:
            plan.run()

        assert error.value.node == (str(y) if named else "")


@pytest.mark.parametrize("answer", [False, True, "no"])
def test_answer_that_is_not_a_refusal_is_an_error_of_the_backend(answer: object) -> None:
    class Vague(NullDevice):
        def _refuses(self, node, source_types):
            return answer

    with Vague() as device, pytest.raises(TypeError) as error:
        device.refuses(tp.relu(x_(4)))

    assert str(error.value) == (
        f"null:0: answers {answer!r} when asked what it refuses; this is an error of the backend, "
        "which must return a Refusal with the reason, or None"
    )


def test_device_hears_where_the_sources_lie(null: NullDevice) -> None:
    heard: list[dict] = []

    class Nosy(NullDevice):
        def _refuses(self, node, source_types):
            heard.append(dict(source_types))

    with Nosy() as device, device.open() as backend:
        w = backend.place("w", np.ones(4, np.float32))
        backend.plan(bound(tp.relu(w), device))

        assert heard == [{w: device.buffer_type}]


def test_error_of_a_kernel_is_raised_by_the_run(null: NullDevice) -> None:
    null.fail("compute", at=2, error=tp.DeviceError("null:0: out of registers"))
    what = bound(tp.relu(tp.relu(x_(4))), null)

    with null.open() as backend, backend.plan(what) as plan:
        with pytest.raises(tp.DeviceError, match="null:0: out of registers"):
            plan.run()
        plan.run()


def test_reprs_say_the_state(null: NullDevice) -> None:
    backend = null.open()
    plan = backend.plan(bound(tp.relu(x_(4)), null))

    assert repr(backend) == "<NullBackend null:0>"
    assert repr(plan) == "<NodePlan null:0, 1 nodes>"
    assert isinstance(plan, NodePlan)


# --- queues ------------------------------------------------------------------------------------


def test_queued_work_is_done_when_somebody_waits(late: NullDevice) -> None:
    x = x_(4)
    y = x + 1.0
    what = bound(y, late)
    transfer.write(x, np.zeros(4), what.bindings)

    with late.open() as backend, backend.plan(what) as plan:
        plan.run()
        assert late.computed == []
        backend.synchronize()

    assert transfer.read(y, what.bindings).tolist() == [1] * 4


def test_one_stream_keeps_its_order_for_every_seed() -> None:
    for seed in range(10):
        with NullDevice(asynchronous=True, timeline=Timeline(seed)) as device:
            x = x_(4)
            what = bound(tp.relu((x * 2.0) + 1.0), device)

            with device.open() as backend, backend.plan(what) as plan:
                plan.run()
                plan.run()
                backend.synchronize()

            assert device.computed == ["scale", "scale", "relu"] * 2


def test_error_of_queued_work_is_raised_once_by_the_next_wait(late: NullDevice) -> None:
    late.fail("compute", at=2)
    what = bound(tp.relu((x_(4) * 2.0) + 1.0), late)

    with late.open() as backend, backend.plan(what) as plan:
        plan.run()
        with pytest.raises(tp.DeviceError, match="late:0: compute failed as the test planned"):
            backend.synchronize()
        backend.synchronize()

    assert late.computed == ["scale"]


def test_error_of_one_stream_is_not_raised_by_another() -> None:
    device = NullDevice(asynchronous=True, timeline=Timeline(1))
    buffer = device.buffer_type.alloc(4)
    bad, good = device.open(), device.open()
    device.fail("write")
    bad.write_async(buffer, 0, memoryview(b"data"))
    good.wait(bad.record())

    good.synchronize()

    with pytest.raises(tp.DeviceError):
        bad.synchronize()
    device.close(force=True)


def test_lost_device_drops_what_was_queued(late: NullDevice) -> None:
    what = bound(tp.relu(x_(4)), late)
    backend = late.open()
    plan = backend.plan(what)
    plan.run()

    late.lose()

    for use in (backend.synchronize, plan.run, backend.record, lambda: backend.plan(what)):
        with pytest.raises(tp.DeviceLost, match="late:0: the device is gone; open another"):
            use()
    late.close(force=True)
    assert late.computed == []


def test_compute_waits(late: NullDevice) -> None:
    what = bound(tp.relu(x_(4)), late)

    with late.open() as backend:
        backend.compute(what)

    assert late.computed == ["relu"]


def test_closing_a_plan_waits_for_its_run(late: NullDevice) -> None:
    what = bound(tp.relu(x_(4)), late)

    with late.open() as backend:
        plan = backend.plan(what)
        plan.run()
        plan.close()

        assert late.computed == ["relu"]


# --- events ------------------------------------------------------------------------------------


def test_event_is_done_once_the_work_before_it_is() -> None:
    device = NullDevice(asynchronous=True)
    backend, buffer = device.open(), device.buffer_type.alloc(4)
    backend.write_async(buffer, 0, memoryview(b"data"))

    event = backend.record()

    assert not event.done
    event.synchronize()
    assert event.done
    assert ("write", 4) in device.log
    device.close(force=True)


def test_event_of_an_idle_stream_is_done(late: NullDevice) -> None:
    with late.open() as backend:
        assert backend.record().done


def test_event_does_not_wait_for_work_queued_after_it() -> None:
    device = NullDevice(asynchronous=True)
    backend, buffer = device.open(), device.buffer_type.alloc(4)
    event = backend.record()
    backend.write_async(buffer, 0, memoryview(b"data"))

    event.synchronize()

    assert ("write", 4) not in device.log
    device.close(force=True)


@pytest.mark.parametrize("shared", [True, False], ids=["one timeline", "two timelines"])
@pytest.mark.parametrize("seed", range(5))
def test_waiting_stream_starts_after_the_event_and_not_before(seed: int, shared: bool) -> None:
    timelines = [Timeline(seed)] * 2 if shared else [Timeline(seed), Timeline(seed + 1)]
    devices = [
        NullDevice(f"late:{i}", asynchronous=True, timeline=t) for i, t in enumerate(timelines)
    ]
    first, second = (device.open() for device in devices)
    buffer = devices[0].buffer_type.alloc(4)
    seen = np.zeros(4, np.uint8)
    first.write_async(buffer, 0, memoryview(b"data"))

    second.wait(first.record())
    second.read_async(buffer, 0, seen.data)
    second.synchronize()

    assert seen.tobytes() == b"data"
    for device in devices:
        device.close(force=True)


def test_missing_wait_shows_for_some_seed() -> None:
    results = set()
    for seed in range(20):
        with NullDevice(asynchronous=True, timeline=Timeline(seed)) as device:
            first, second = device.open(), device.open()
            buffer = device.buffer_type.alloc(4)
            buffer.fill(0)
            seen = np.zeros(4, np.uint8)
            first.write_async(buffer, 0, memoryview(b"data"))
            second.read_async(buffer, 0, seen.data)
            second.synchronize()
            results.add(seen.tobytes())

    assert results == {b"data", bytes(4)}


def test_events_of_other_kinds_of_devices_are_not_accepted(late: NullDevice) -> None:
    other = NullDevice("odd:0", asynchronous=True)
    event = other.open().record()

    with late.open() as backend:
        assert not backend.accepts(event)
        with pytest.raises(tp.Unsupported, match="of another kind of device"):
            backend.wait(event)
    other.close(force=True)


# --- one thread at a time ----------------------------------------------------------------------


class Gate:
    """A kernel that lets a test look while it runs."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.leave = threading.Event()

    def __call__(self, _node: tp.Tensor, out: np.ndarray, x: np.ndarray) -> None:
        self.entered.set()
        assert self.leave.wait(10)
        out[...] = x


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def busy(gate: Gate) -> Callable[[Plan], threading.Thread]:
    def start(plan: Plan) -> threading.Thread:
        thread = threading.Thread(target=plan.run)
        thread.start()
        assert gate.entered.wait(10)
        return thread

    return start


@pytest.mark.parametrize("which", ["same plan", "other plan"])
def test_second_thread_in_a_stream_is_refused(gate: Gate, busy, which: str) -> None:
    with NullDevice(kernels={"relu": gate}) as device, device.open() as backend:
        what = bound(tp.relu(x_(4)), device)
        plan, other = backend.plan(what), backend.plan(what)
        thread = busy(plan)

        with pytest.raises(ConcurrentUse) as error:
            (plan if which == "same plan" else other).run()

        gate.leave.set()
        thread.join()
        owner = "plan on null:0" if which == "same plan" else "backend null:0"
        assert str(error.value) == (
            f"{owner}: entered while another thread or call runs it; give each thread its own"
        )
        plan.run()


def test_plan_is_not_rebound_while_it_runs(gate: Gate, busy) -> None:
    with NullDevice(kernels={"relu": gate}) as device, device.open() as backend:
        plan = backend.plan(bound(tp.relu(x_(4)), device))
        thread = busy(plan)

        with pytest.raises(ConcurrentUse):
            plan.rebind(plan.bound)

        gate.leave.set()
        thread.join()


def test_two_streams_of_a_device_run_at_once(gate: Gate, busy) -> None:
    with NullDevice(kernels={"relu": gate}) as device:
        first, second = device.open(), device.open()
        thread = busy(first.plan(bound(tp.relu(x_(4)), device)))

        second.compute(bound(x_(4) * 2.0, device))

        gate.leave.set()
        thread.join()
        assert device.computed == ["relu", "scale"]


def test_stream_is_free_again_after_an_error(null: NullDevice) -> None:
    null.fail("compute")

    with null.open() as backend, backend.plan(bound(tp.relu(x_(4)), null)) as plan:
        with pytest.raises(tp.DeviceError):
            plan.run()
        plan.run()


def test_buffers_may_be_made_by_many_threads(null: NullDevice) -> None:
    def work() -> None:
        for _ in range(50):
            null.buffer_type.alloc(8).close()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (null.live_buffers, null.used, null.children) == (0, 0, [])


# --- placing -----------------------------------------------------------------------------------


def test_place_puts_data_into_the_memory_of_choice(null: NullDevice, host: NullDevice) -> None:
    with null.open() as backend:
        usual = backend.place("w", np.ones(4, np.float32), usage=tp.WEIGHTS)
        chosen = backend.place("w", np.ones(4, np.float32), buffer_type=host.buffer_type)

        assert usual.place.buffer.type is null.buffer_type
        assert usual.place.buffer.usage is tp.WEIGHTS
        assert chosen.place.buffer.type is host.buffer_type
