"""The scheduler on fake devices: where nodes go, what is copied, what the report says."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.errors import (
    Aborted,
    Closed,
    DeviceError,
    GraphError,
    NotAllocated,
    OptionError,
    OutOfMemory,
    SchedulerBusy,
    StaleResult,
    Unsupported,
)
from tensorplug.graph.tensor import Tensor
from tensorplug.running.arena import Arena
from tensorplug_testing.null import NullDevice

from .rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


X = np.arange(8, dtype=np.float32).reshape(2, 4) - 3


def x_in() -> Tensor:
    return tp.input("x", (2, 4), tp.F32)


# --- where nodes go ----------------------------------------------------------------------------


def test_node_runs_where_its_weights_are(rig: Rig) -> None:
    w = rig.fast.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
    y = tp.mul_mat(w, x_in())

    schedule = rig.scheduler.schedule(y)

    assert schedule.device_of(y) == "gpu:0"


def test_neighbours_of_accelerated_nodes_are_accelerated_too(rig: Rig) -> None:
    w = rig.fast.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
    before = tp.relu(x_in())
    after = tp.relu(tp.mul_mat(w, before))

    schedule = rig.scheduler.schedule(after)

    assert [schedule.device_of(t) for t in (before, after)] == ["gpu:0", "gpu:0"]


def test_node_without_weights_goes_to_the_first_backend_that_reads_its_sources(rig: Rig) -> None:
    y = tp.relu(x_in())

    assert rig.scheduler.schedule(y).device_of(y) == "cpu:0"


def test_node_that_the_fast_device_refuses_runs_on_the_other_and_the_report_says_why() -> None:
    rig = Rig(ops={"mul_mat", "add"})
    w = rig.fast.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
    a = tp.mul_mat(w, x_in(), name="a")
    b = tp.relu(a, name="b")
    c = tp.mul_mat(w, b, name="c")

    schedule = rig.scheduler.schedule(c)
    rows = {row.node: row for row in schedule.explain().nodes}

    assert [rows[n].device for n in "abc"] == ["gpu:0", "cpu:0", "gpu:0"]
    assert rows["b"].refusals == {"gpu:0": "gpu:0: does not do relu"}
    assert rows["a"].cause == "its weights w lie in gpu:0"
    rig.close()


def test_report_names_weights_without_a_name_by_their_number() -> None:
    rig = Rig(ops={"mul_mat"})
    w = rig.fast.place("", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)

    (row,) = rig.scheduler.schedule(tp.mul_mat(w, x_in())).explain().nodes

    assert row.cause == f"its weights leaf #{w.serial} lie in gpu:0"
    rig.close()


def test_pin_survives_all_passes(rig: Rig) -> None:
    w = rig.fast.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
    y = tp.mul_mat(w, x_in())

    schedule = rig.scheduler.schedule(y, pins={y: rig.slow})

    assert schedule.device_of(y) == "cpu:0"
    np.testing.assert_array_equal(schedule.run({schedule.graph.inputs[0]: X})[y], X)


def test_pin_to_a_device_that_refuses_names_the_reason() -> None:
    rig = Rig(ops={"add"})
    y = tp.relu(x_in(), name="y")

    with pytest.raises(
        Unsupported, match=r"'y'.*: pinned to gpu:0, which refuses it: gpu:0: does not do relu"
    ):
        rig.scheduler.schedule(y, pins={y: rig.fast})
    rig.close()


def test_node_that_nobody_computes_lists_every_refusal(rig: Rig) -> None:
    y = tp.log(x_in(), name="y")

    with pytest.raises(
        Unsupported,
        match=r"'y'.*: no backend can compute it: gpu:0: no kernel for log; "
        r"cpu:0: no kernel for log; add a backend that can, such as cpu, as the last one",
    ):
        rig.scheduler.schedule(y)


@pytest.mark.parametrize(
    ("backends", "message"),
    [
        ("cpu", "Scheduler: backends='cpu'; give a list of streams: [tensorplug.open('cpu')]"),
        (["cpu"], "Scheduler: 'cpu' is not a stream; open one, such as tensorplug.open('cpu')"),
    ],
)
def test_what_is_no_list_of_streams_is_refused(backends, message: str) -> None:
    with pytest.raises(tp.OptionError) as error:
        tp.Scheduler(backends)

    assert str(error.value) == message


def test_pin_of_a_name_is_refused(rig: Rig) -> None:
    y = tp.relu(x_in(), name="y")

    with pytest.raises(tp.OptionError, match="pins has 'y'; its keys are tensors"):
        rig.scheduler.schedule(y, pins={"y": rig.slow})


def test_weights_of_a_device_without_a_stream_are_said_to_come_from_there(rig: Rig) -> None:
    w = rig.fast.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)

    with tp.Scheduler([rig.slow]) as scheduler:
        (copy,) = scheduler.schedule(tp.mul_mat(w, x_in())).explain().copies

    assert (copy.tensor, copy.origin, copy.target) == ("w", "gpu:0", "cpu:0")


def test_work_on_host_weights_is_offloaded_where_the_device_wants_it() -> None:
    rig = Rig(offloads={"mul_mat"})
    w = rig.slow.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
    y = tp.mul_mat(w, x_in())

    schedule = rig.scheduler.schedule(y)

    assert schedule.device_of(y) == "gpu:0"
    assert schedule.explain().nodes[0].cause == "worth copying its weights"
    rig.close()


def test_offloading_can_be_switched_off() -> None:
    rig = Rig(offloads={"mul_mat"})
    w = rig.slow.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
    y = tp.mul_mat(w, x_in())

    with tp.Scheduler([rig.fast, rig.slow], offload=False) as scheduler:
        assert scheduler.schedule(y).device_of(y) == "cpu:0"
    rig.close()


def test_write_into_memory_that_lies_on_a_device_happens_there(rig: Rig) -> None:
    cache = rig.fast.place("cache", np.zeros((4, 4), np.float32))
    written = tp.set_rows(cache, x_in(), tp.input("ids", (2,), tp.I32))

    assert rig.scheduler.schedule([], effects=[written]).device_of(written) == "gpu:0"


def test_node_moves_to_a_higher_backend_that_shares_its_memory() -> None:
    accel = NullDevice("accel:0", device_type=tp.DeviceType.ACCEL, ops={"mul_mat"}, host=True)
    cpu = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True)
    with accel.open() as first, cpu.open() as last:
        kinds = {first: cpu.buffer_type}
        w = last.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
        y = tp.mul_mat(w, tp.relu(x_in()))
        with tp.Scheduler([first, last], buffer_types=kinds) as scheduler:
            schedule = scheduler.schedule(y)

            assert schedule.device_of(y) == "accel:0"
            assert schedule.explain().copies == ()


def test_last_backend_must_be_readable_by_the_host() -> None:
    a, b = NullDevice("a:0"), NullDevice("b:0")
    with (
        a.open() as first,
        b.open() as last,
        pytest.raises(OptionError, match="the last backend, b:0, computes in b:0, which the host"),
    ):
        tp.Scheduler([first, last])


# --- splits and copies -------------------------------------------------------------------------


def test_views_neither_start_nor_end_a_split(rig: Rig) -> None:
    w = rig.fast.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
    y = tp.relu(tp.mul_mat(w, x_in()).reshape(4, 2)[:2])

    assert len(rig.scheduler.schedule(y).splits) == 1


def test_tensor_read_by_two_splits_of_a_device_is_copied_once() -> None:
    rig = Rig(ops={"mul_mat"})
    w = rig.fast.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
    x = x_in()
    first = tp.mul_mat(w, x)
    again = tp.mul_mat(w, tp.add(tp.relu(first), x))
    both = tp.mul_mat(tp.cont(again), x)
    schedule = rig.scheduler.schedule(both, pins={both: rig.fast})

    copied = [c.tensor for c in schedule.explain().copies if c.target == "gpu:0"]

    assert copied.count("x") == 1
    rig.close()


def test_write_between_two_reads_makes_a_second_copy(rig: Rig) -> None:
    state = rig.slow.place("state", np.ones((2, 4), np.float32))
    w = rig.fast.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
    x = x_in()
    before = tp.mul_mat(w, state, name="before")
    change = tp.cpy(x, state)
    after = tp.mul_mat(w, state, name="after")

    schedule = rig.scheduler.schedule([before, after], effects=[change])
    results = schedule.run({x: X})

    np.testing.assert_array_equal(results[before], np.ones((2, 4)))
    np.testing.assert_array_equal(results[after], X)


def test_effect_that_nothing_reads_is_not_dropped(rig: Rig) -> None:
    state = rig.fast.place("state", np.zeros((2, 4), np.float32))
    x = x_in()
    y = tp.relu(x)

    rig.scheduler.schedule(y, effects=[tp.cpy(x, state)]).run({x: X})
    rig.fast.synchronize()

    np.testing.assert_array_equal(tp.transfer.read(state), X)


def test_cache_written_and_read_in_one_graph_sees_the_write(rig: Rig) -> None:
    cache = rig.fast.place("cache", np.zeros((4, 4), np.float32))
    x, ids = x_in(), tp.input("ids", (2,), tp.I32)
    written = tp.set_rows(cache, x, ids)
    y = tp.relu(cache[:3])

    schedule = rig.scheduler.schedule(y, effects=[written])
    first = schedule.run({x: X, ids: [0, 2]})[y]
    second = schedule.run({x: X + 100, ids: [1, 3]})[y]

    np.testing.assert_array_equal(first, np.maximum([X[0], X[0] * 0, X[1]], 0))
    np.testing.assert_array_equal(second, np.maximum([X[0], X[0] + 100, X[1]], 0))


def test_users_graph_is_not_changed(rig: Rig) -> None:
    w = rig.fast.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
    graph = tp.Graph(tp.relu(tp.mul_mat(w, x_in())))
    before = [(t, t.operands, t.place) for t in graph.nodes]

    for _ in range(2):
        rig.scheduler.schedule(graph).run({graph.inputs[0]: X})

    assert [(t, t.operands, t.place) for t in graph.nodes] == before


# --- running -----------------------------------------------------------------------------------


def test_inputs_not_given_keep_their_value(rig: Rig) -> None:
    x, b = x_in(), tp.input("b", (2, 4), tp.F32)
    y = tp.add(x, b)
    schedule = rig.scheduler.schedule(y)
    schedule.run({x: X, b: X})

    again = schedule.run({b: 0 * X})[y]

    np.testing.assert_array_equal(again, X)


def test_inputs_survive_the_runs_of_another_schedule(rig: Rig) -> None:
    x, z = x_in(), tp.input("z", (64, 64), tp.F32)
    y = tp.relu(x)
    schedule = rig.scheduler.schedule(y)
    schedule.run({x: X})
    rig.scheduler.schedule(tp.relu(tp.relu(z))).run({z: np.ones((64, 64))})

    np.testing.assert_array_equal(schedule.run()[y], np.maximum(X, 0))


def test_transient_input_must_be_given_to_every_run(rig: Rig) -> None:
    x = x_in()
    schedule = rig.scheduler.schedule(tp.relu(x), transient=[x])
    schedule.run({x: X})

    with pytest.raises(NotAllocated, match=r"'x'.*: is transient; give it to every run\(\)"):
        schedule.run()


def test_missing_input_is_named(rig: Rig) -> None:
    schedule = rig.scheduler.schedule(tp.relu(x_in()))

    with pytest.raises(NotAllocated, match=r"'x'.*: has no value yet; give it to run\(\)"):
        schedule.run()


def test_value_for_a_tensor_that_is_no_input_is_refused(rig: Rig) -> None:
    x = x_in()
    y = tp.relu(x, name="y")
    schedule = rig.scheduler.schedule(y)

    with pytest.raises(GraphError, match=r"'y'.*: is not an input of .*; its inputs: <Tensor 'x'"):
        schedule.run({x: X, y: X})


def test_an_array_in_place_of_inputs_is_refused(rig: Rig) -> None:
    schedule = rig.scheduler.schedule(tp.relu(x_in()))

    with pytest.raises(GraphError, match=r"^inputs is of type ndarray; give data by tensors, as "):
        schedule.run(X)


def test_result_read_after_a_later_run_is_stale(rig: Rig) -> None:
    x = x_in()
    y = tp.relu(x)
    schedule = rig.scheduler.schedule(y)
    old = schedule.run({x: X})
    schedule.run()

    with pytest.raises(StaleResult, match=r"its memory was used by a later run"):
        old[y]


def test_only_outputs_can_be_read(rig: Rig) -> None:
    x = x_in()
    middle = tp.relu(x, name="middle")
    results = rig.scheduler.schedule(tp.relu(middle)).run({x: X})

    with pytest.raises(GraphError, match=r"'middle'.*: is not an output of .*; name it among"):
        results[middle]


def test_rerun_allocates_nothing_and_plans_nothing(rig: Rig) -> None:
    w = rig.fast.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
    x = x_in()
    schedule = rig.scheduler.schedule(tp.relu(tp.mul_mat(w, x)))
    schedule.run({x: X})
    live = (rig.gpu.live_buffers, rig.cpu.live_buffers)
    rig.gpu.fail("alloc")
    rig.cpu.fail("alloc")

    for _ in range(5):
        schedule.run({x: X})

    assert (rig.gpu.live_buffers, rig.cpu.live_buffers) == live


def test_schedules_share_one_arena(rig: Rig) -> None:
    def deep(n: int) -> tuple[Tensor, Tensor]:
        z = tp.input("z", (n, n), tp.F32)
        return z, tp.sum_rows(tp.add(tp.relu(z), z))

    (a, small), (b, large) = deep(16), deep(64)
    first = rig.scheduler.schedule(small)
    second = rig.scheduler.schedule(large)
    after_both = rig.scheduler._runs.memory_size(rig.cpu.buffer_type)

    assert after_both < 64 * 64 * 4 * 2
    np.testing.assert_array_equal(first.run({a: np.ones((16, 16))})[small], np.full((16, 1), 32))
    np.testing.assert_array_equal(second.run({b: np.ones((64, 64))})[large], np.full((64, 1), 128))
    np.testing.assert_array_equal(first.run()[small], np.full((16, 1), 32))


def test_sizes_are_known_without_allocating(rig: Rig) -> None:
    y = tp.relu(x_in())

    sizes = rig.scheduler.sizes(y)

    assert sizes == {"cpu:0": 128}
    assert rig.cpu.live_buffers == 0


def test_reserve_makes_room_for_the_largest_graph(rig: Rig) -> None:
    rig.scheduler.reserve(tp.relu(tp.input("z", (64, 64), tp.F32)))
    size = rig.scheduler.buffer_size(rig.slow)

    rig.scheduler.schedule(tp.relu(x_in()))

    assert rig.scheduler.buffer_size(rig.slow) == size == 2 * 64 * 64 * 4


def test_memory_of_weights_that_was_closed_is_not_used(rig: Rig) -> None:
    w = rig.fast.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
    x = x_in()
    y = tp.mul_mat(w, x)
    schedule = rig.scheduler.schedule(y)
    schedule.run({x: X})
    assert w.place is not None
    w.place.buffer.close()

    with pytest.raises(Closed, match="is closed"):
        schedule.run({x: X})
    with pytest.raises(Closed, match="is closed"):
        rig.scheduler.schedule(y)


def test_plan_of_a_closed_schedule_serves_the_next_graph_of_its_structure(rig: Rig) -> None:
    x = x_in()
    with rig.scheduler.schedule(tp.relu(x)) as schedule:
        plan = schedule._batches[0].plans[0]
    z = tp.input("z", (2, 4), tp.F32)
    y = tp.relu(z)

    again = rig.scheduler.schedule(y)

    assert again._batches[0].plans[0] is plan
    np.testing.assert_array_equal(again.run({z: X})[y], np.maximum(X, 0))


# --- when something fails ----------------------------------------------------------------------


def test_out_of_memory_leaves_earlier_schedules_usable() -> None:
    rig = Rig()
    device = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True, memory=4096)
    with device.open() as backend, tp.Scheduler([backend]) as scheduler:
        x = x_in()
        y = tp.relu(x)
        schedule = scheduler.schedule(y)
        z = tp.input("z", (30, 30), tp.F32)

        with pytest.raises(OutOfMemory):
            scheduler.schedule(tp.relu(z))

        np.testing.assert_array_equal(schedule.run({x: X})[y], np.maximum(X, 0))
    rig.close()


def test_compute_memory_that_a_device_failed_to_grow_can_be_used_as_before() -> None:
    device = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True)
    with device.open() as backend, tp.Scheduler([backend]) as scheduler:
        x, z = x_in(), tp.input("z", (30, 30), tp.F32)
        y = tp.relu(x)
        schedule = scheduler.schedule(y)
        device.fail("alloc", error=DeviceError("cpu:0: hiccup"))

        with pytest.raises(DeviceError):
            scheduler.schedule(tp.relu(z))

        np.testing.assert_array_equal(schedule.run({x: X})[y], np.maximum(X, 0))


def test_later_chunks_stay_when_an_earlier_one_cannot_grow() -> None:
    device = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True, memory=10_000)
    arena = Arena([device.buffer_type], lambda: None)
    arena.grow([[1000, 2000, 3000]])

    with pytest.raises(OutOfMemory, match="cannot grow from 1000 to 9000 bytes"):
        arena.grow([[9000, 2000, 3000]])

    assert arena.size(device.buffer_type) == device.used == 6000
    arena.release()


def test_growing_past_the_limit_names_sizes_and_remedy() -> None:
    device = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True, memory=6000)
    with device.open() as backend, tp.Scheduler([backend]) as scheduler:
        scheduler.schedule(tp.relu(x_in()))

        with pytest.raises(
            OutOfMemory,
            match=r"cpu:0: the compute buffer cannot grow from 64 to 8192 bytes .*; use a smaller "
            "batch or context, or put layers on another device",
        ):
            scheduler.reserve(tp.relu(tp.input("z", (2048,), tp.F32)))

        assert scheduler.buffer_size(backend) == 64


@pytest.mark.parametrize("what", ["compute", "write"])
def test_run_after_a_failed_run_is_right(what: str) -> None:
    rig = Rig(asynchronous=True)
    w = rig.fast.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
    x = x_in()
    y = tp.relu(tp.mul_mat(w, tp.relu(x)))
    schedule = rig.scheduler.schedule(y)
    rig.gpu.fail(what)

    with pytest.raises(tp.DeviceError, match=f"{what} failed as the test planned"):
        schedule.run({x: X})[y]

    np.testing.assert_array_equal(schedule.run({x: X})[y], np.maximum(X, 0))
    rig.close()


def test_two_threads_in_one_scheduler_are_told_so(rig: Rig) -> None:
    x = x_in()
    inside, leave = threading.Event(), threading.Event()

    class Slow:
        def wants(self, node: Tensor) -> bool:
            return True

        def see(self, node: Tensor, value: Any) -> bool:
            inside.set()
            return leave.wait(10)

    schedule = rig.scheduler.schedule(tp.relu(x))
    thread = threading.Thread(target=lambda: schedule.run({x: X}, observer=Slow()))
    thread.start()
    inside.wait(10)

    with pytest.raises(SchedulerBusy, match=r"entered while another thread or call runs it"):
        schedule.run({x: X})

    leave.set()
    thread.join()


# --- what it says ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["1", "2", "yes"])
def test_variable_prints_every_schedule_to_standard_error(rig, value, monkeypatch, capsys) -> None:
    monkeypatch.setenv("TENSORPLUG_SCHED_DEBUG", value)

    schedule = rig.scheduler.schedule(tp.relu(x_in(), name="y"))

    told = capsys.readouterr()
    assert told.err == f"scheduled {schedule.graph!r}:\n{schedule.explain()}\n"
    assert not told.out


@pytest.mark.parametrize("value", [None, "", "0"])
def test_nothing_is_printed_without_the_variable(rig, value, monkeypatch, capsys) -> None:
    if value is not None:
        monkeypatch.setenv("TENSORPLUG_SCHED_DEBUG", value)

    rig.scheduler.schedule(tp.relu(x_in()))

    assert capsys.readouterr() == ("", "")


def test_weights_in_memory_where_no_stream_computes_are_warned_of_once(rig, caplog) -> None:
    with NullDevice("far:0") as far, far.open() as other:
        w = other.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
        x = x_in()
        y = tp.mul_mat(w, x)

        for _ in range(2):
            with rig.scheduler.schedule(y) as schedule:
                np.testing.assert_array_equal(schedule.run({x: X})[y], X)

        home = rig.scheduler.schedule(y).device_of(y)
        assert [r.message for r in caplog.records if r.levelname == "WARNING"] == [
            "weights w lie in far:0, where no stream of this scheduler computes: 64 B are copied "
            f"to {home} in each run; give the scheduler a stream of far:0"
        ]


def test_weights_of_a_stream_of_the_scheduler_are_not_warned_of(rig, caplog) -> None:
    ws = [b.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS) for b in (rig.fast, rig.slow)]

    rig.scheduler.schedule([tp.mul_mat(w, x_in()) for w in ws])

    assert not caplog.records


# --- observers ---------------------------------------------------------------------------------


class Recorder:
    def __init__(self, names: str, stop_at: str = "") -> None:
        self.names, self.stop_at = names, stop_at
        self.seen: dict[str, np.ndarray] = {}

    def wants(self, node: Tensor) -> bool:
        return node.name in self.names

    def see(self, node: Tensor, value: np.ndarray) -> bool:
        self.seen[node.name] = value
        return node.name != self.stop_at


def test_observer_sees_the_values_it_wants(rig: Rig) -> None:
    w = rig.fast.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
    x = x_in()
    a = tp.relu(x, name="a")
    y = tp.scale(tp.mul_mat(w, a, name="b"), 2.0, name="c")
    recorder = Recorder("ab")

    result = rig.scheduler.schedule(y).run({x: X}, observer=recorder)[y]

    assert list(recorder.seen) == ["a", "b"]
    np.testing.assert_array_equal(recorder.seen["b"], np.maximum(X, 0))
    np.testing.assert_array_equal(result, 2 * np.maximum(X, 0))


def test_observer_that_says_no_cancels_all_splits() -> None:
    rig = Rig(ops={"mul_mat"})
    w = rig.fast.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
    x = x_in()
    a = tp.mul_mat(w, x, name="a")
    y = tp.mul_mat(w, tp.relu(a, name="b"), name="c")
    schedule = rig.scheduler.schedule(y)

    with pytest.raises(Aborted, match=r"'b'.*: the observer cancelled the run here"):
        schedule.run({x: X}, observer=Recorder("b", stop_at="b"))

    assert rig.gpu.computed == ["mul_mat"]
    np.testing.assert_array_equal(schedule.run({x: X})[y], np.maximum(X, 0))
    rig.close()


@pytest.mark.parametrize("flying", [0, 1, 4])
def test_observer_of_a_submitted_batch_sees_its_values_and_disturbs_no_other(flying: int) -> None:
    with ExitStack() as opened:
        gpu = opened.enter_context(NullDevice("gpu:0", asynchronous=True))
        cpu = opened.enter_context(NullDevice("cpu:0", host=True))
        fast, slow = (opened.enter_context(d.open()) for d in (gpu, cpu))
        scheduler = opened.enter_context(tp.Scheduler([fast, slow], parallel=True))
        w = fast.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
        x = x_in()
        a = tp.relu(tp.mul_mat(w, x, name="m"), name="a")
        y = tp.add(tp.scale(a, 2.0, name="b"), a, name="y")
        schedule = opened.enter_context(scheduler.schedule(y))
        recorder = Recorder("mab")

        before = [schedule.submit({x: X + i}) for i in range(flying)]
        observed = schedule.submit({x: -X}, observer=recorder)
        after = [schedule.submit({x: X - i}) for i in range(3)]

        assert list(recorder.seen) == ["m", "a", "b"]
        np.testing.assert_array_equal(recorder.seen["b"], 2 * np.maximum(-X, 0))
        np.testing.assert_array_equal(observed[y], 3 * np.maximum(-X, 0))
        for i, flight in enumerate(before):
            np.testing.assert_array_equal(flight[y], 3 * np.maximum(X + i, 0))
        for i, flight in enumerate(after):
            np.testing.assert_array_equal(flight[y], 3 * np.maximum(X - i, 0))


def test_observer_that_cancels_a_submitted_batch_leaves_the_schedule_usable() -> None:
    with NullDevice("host:0", host=True) as host, host.open() as stream:
        x = x_in()
        y = tp.scale(tp.relu(x, name="a"), 2.0)
        with tp.Scheduler([stream], parallel=True) as scheduler:
            schedule = scheduler.schedule(y)

            with pytest.raises(Aborted, match=r"'a'.*: the observer cancelled the run here"):
                schedule.submit({x: X}, observer=Recorder("a", stop_at="a"))

            for i in range(6):
                np.testing.assert_array_equal(
                    schedule.submit({x: X + i})[y], 2 * np.maximum(X + i, 0)
                )


# --- reordering --------------------------------------------------------------------------------


def test_backend_may_reorder_nodes_but_not_past_what_they_need(rig: Rig) -> None:
    x = x_in()
    y = tp.relu(tp.scale(x, 2.0))
    rig.slow.optimize = lambda nodes: nodes[::-1]  # type: ignore[attr-defined]

    with pytest.raises(GraphError, match=r"optimize: .*relu.* was moved before .*scale"):
        rig.scheduler.schedule(y)


def test_reordered_independent_nodes_run_in_the_new_order(rig: Rig) -> None:
    x = x_in()
    y, z = tp.relu(x), tp.scale(x, 2.0)
    rig.slow.optimize = lambda nodes: nodes[::-1]  # type: ignore[attr-defined]

    schedule = rig.scheduler.schedule([y, z])
    schedule.run({x: X})

    assert rig.cpu.computed == ["scale", "relu"]


def test_debug_log_holds_the_whole_explanation(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="tensorplug.running"):
        schedule = rig.scheduler.schedule(tp.relu(x_in()))

    assert str(schedule.explain()) in caplog.text


def test_report_of_a_refusal_names_the_device_once() -> None:
    rig = Rig(ops={"mul_mat"})

    report = str(rig.scheduler.schedule(tp.relu(x_in())).explain())

    assert "; refused by gpu:0: does not do relu" in report
    rig.close()


def test_effects_of_a_finished_graph_are_refused(rig: Rig) -> None:
    x = tp.input("x", (4,), tp.F32)
    with pytest.raises(tp.OptionError, match=r"has its effects; give them to Graph\(...\) instead"):
        rig.scheduler.schedule(tp.Graph(x * 2), effects=[tp.relu(x)])


def test_transient_tensors_are_inputs_of_the_graph(rig: Rig) -> None:
    x, other = tp.input("x", (4,), tp.F32), tp.input("other", (4,), tp.F32)
    with pytest.raises(tp.OptionError, match=r"transient has .*'other'.*, not an input of"):
        rig.scheduler.schedule(x * 2, transient=[other])


@pytest.mark.parametrize(("alignment", "transfers"), [(64, 1), (128, 3)])
def test_inputs_that_lie_alike_in_both_memories_are_one_transfer(
    rig: Rig, alignment: int, transfers: int
) -> None:
    rig.gpu.buffer_type.alignment = alignment
    w = rig.fast.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
    x, shift, scale = x_in(), tp.input("shift", (4,), tp.F32), tp.input("scale", (4,), tp.F32)
    y = tp.mul_mat(w, x) * scale + shift
    schedule = rig.scheduler.schedule(y, transient=(x, shift, scale))
    given = {x: X, shift: np.full(4, 3.0), scale: np.full(4, 2.0)}
    schedule.run(given)
    rig.gpu.log.clear()

    result = schedule.run(given)[y]

    np.testing.assert_array_equal(result, 2 * X + 3)
    assert [e.what for e in rig.gpu.log].count("write") == transfers


def test_buffer_types_are_of_streams_of_the_scheduler(rig: Rig) -> None:
    gpu, cpu = rig.fast, rig.slow
    with pytest.raises(tp.OptionError, match=r"buffer_types has .*, not among its streams"):
        tp.Scheduler([cpu], buffer_types={gpu: cpu.buffer_type})


def test_a_pinned_write_stays_on_its_stream_or_is_refused(rig: Rig) -> None:
    gpu, cpu = rig.fast, rig.slow
    x = tp.input("x", (4,), tp.F32)
    y = tp.relu(x)
    write = tp.in_place(y * 2)
    with pytest.raises(tp.Unsupported, match=r"pinned to gpu:0, but it writes into .*; pin both"):
        rig.scheduler.schedule(y, effects=[write], pins={y: cpu, write: gpu})
