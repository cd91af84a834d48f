"""A device fails in the middle of a schedule: the error, runs without it, and taking it back."""

from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import meta
from tensorplug.errors import DeviceLost, RunFailed
from tensorplug_testing.null import NullDevice, null_devices

X = np.arange(16, dtype=np.float32).reshape(4, 4) - 5
W = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)

CHAIN = np.maximum(X @ W.T @ W.T, 0)


# --- the error ---------------------------------------------------------------------------------


def test_error_says_what_failed_where_what_is_done_and_what_is_held(rig: Any) -> None:
    work = rig(on_failure="raise")
    y = work.chain()
    schedule = work.scheduler.schedule(y, pins={y: work.streams[2]})
    work.two.fail("compute")

    with pytest.raises(RunFailed) as error:
        schedule.run({work.x: X})

    state = error.value.state
    assert state.devices == ("gpu:1",)
    assert (state.cause, state.split, state.splits) == ("failed", 1, 3)
    assert state.completed == (0,)
    assert state.held == {"gpu:1": 128, "w1": 64}
    assert "'second'" in state.node
    assert str(error.value) == (
        "gpu:1: failed as it runs split 1 of 3 (mul_mat to mul_mat), at "
        f"{state.node}: gpu:1: compute failed as the test planned; surfaced at step 4 of 7 "
        "(mul_mat to mul_mat); splits done: 0; held there: "
        "gpu:1 128 B, w1 64 B; run again, or make a scheduler without gpu:1, or one with "
        "on_failure='replan'"
    )


@pytest.mark.parametrize(
    ("what", "doing"),
    [
        ("copy", "copies first for split 1 of 2 (mul_mat to relu)"),
        ("compute", "runs split 1 of 2 (mul_mat to relu)"),
        ("read", "reads last"),
    ],
)
def test_error_says_what_the_run_was_at(rig: Any, what: str, doing: str) -> None:
    work = rig(on_failure="raise", async_copy=True)
    y = work.chain()
    schedule = work.scheduler.schedule(y)
    work.two.fail(what)

    with pytest.raises(RunFailed) as error:
        schedule.run({work.x: X})[y]

    assert error.value.state.doing == doing
    assert error.value.state.devices == ("gpu:1",)


@pytest.mark.parametrize(
    ("harm", "cause"),
    [
        (lambda d: d.fail("compute"), "failed"),
        (lambda d: d.fail("compute", error=tp.OutOfMemory("full")), "out of memory"),
        (lambda d: d.lose("compute"), "gone"),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_error_names_the_cause(rig: Any, harm: Any, cause: str, asynchronous: bool) -> None:
    work = rig(on_failure="raise", asynchronous=asynchronous)
    y = work.chain()
    schedule = work.scheduler.schedule(y)
    harm(work.two)

    with pytest.raises(RunFailed) as error:
        schedule.run({work.x: X})[y]

    assert (error.value.state.devices, error.value.state.cause) == (("gpu:1",), cause)
    assert isinstance(error.value.__cause__, (tp.DeviceError, tp.OutOfMemory))


def test_result_of_a_run_that_failed_cannot_be_read_later(rig: Any) -> None:
    work = rig(on_failure="raise", asynchronous=True)
    y = work.chain()
    results = work.scheduler.schedule(y).run({work.x: X})
    work.two.fail("compute")
    with pytest.raises(RunFailed):
        results[y]

    with pytest.raises(RunFailed):
        results[y]


def test_batches_in_flight_raise_where_an_earlier_one_failed(rig: Any) -> None:
    work = rig(on_failure="raise", asynchronous=True)
    y = work.chain()
    with tp.Scheduler(work.streams, parallel=True) as scheduler:
        schedule = scheduler.schedule(y)
        flying = [schedule.submit({work.x: X + i}) for i in range(3)]
        work.two.fail("compute")

        for flight in flying:
            with pytest.raises(RunFailed, match="gpu:1: failed"):
                flight[y]

        np.testing.assert_allclose(schedule.submit({work.x: X})[y], CHAIN, rtol=1e-6)


def test_what_the_program_did_wrong_is_no_failure_of_a_device(rig: Any) -> None:
    work = rig()
    y = work.chain()
    schedule = work.scheduler.schedule(y)

    with pytest.raises(tp.ShapeError):
        schedule.run({work.x: X[:2]})

    assert len(work.scheduler.backends) == 3


# --- going on without it -----------------------------------------------------------------------

FAULTS = ("alloc", "write", "read", "copy", "compute", "plan", "queue", "event", "wait")


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("what", FAULTS)
@pytest.mark.parametrize("which", [0, 1])
def test_run_gives_the_same_without_a_device_that_is_lost_in_it(
    rig: Any, which: int, what: str, asynchronous: bool, pinned: bool
) -> None:
    work = rig(asynchronous=asynchronous, pinned=pinned)
    y = work.chain()
    schedule = work.scheduler.schedule(y)
    work.devices[which].lose(what)

    first = schedule.run({work.x: X})[y]
    second = schedule.run({work.x: X})[y]

    np.testing.assert_allclose(first, CHAIN, rtol=1e-6)
    np.testing.assert_allclose(second, CHAIN, rtol=1e-6)


def test_all_devices_but_the_last_may_be_lost(rig: Any) -> None:
    work = rig()
    y = work.chain()
    schedule = work.scheduler.schedule(y)
    work.one.lose("compute")
    work.two.lose("compute", at=2)

    result = schedule.run({work.x: X})[y]

    np.testing.assert_allclose(result, CHAIN, rtol=1e-6)
    assert [b.name for b in work.scheduler.backends] == ["cpu:0"]
    assert schedule.device_of(y) == "cpu:0"


def test_weights_go_to_a_device_that_has_room_and_can_use_them(rig: Any) -> None:
    work = rig()
    y = work.chain()
    schedule = work.scheduler.schedule(y)
    work.one.lose()

    schedule.run({work.x: X})

    (w0,) = (t for t in schedule.graph.leafs if t.name == "w0")
    assert work.scheduler.place_of(w0).buffer.type.name == "gpu:1"


def test_inputs_that_were_given_earlier_are_not_lost(rig: Any) -> None:
    work = rig()
    z = tp.input("z", (4, 4), tp.F32)
    y = tp.mul_mat(work.weight(0), work.x) + z
    schedule = work.scheduler.schedule(y, pins={z: work.streams[0]})
    schedule.run({work.x: X, z: X})
    work.one.lose()

    result = schedule.run({work.x: X + 1})[y]

    np.testing.assert_allclose(result, (X + 1) @ W.T + X, rtol=1e-6)


def test_schedules_made_before_and_after_go_on_too(rig: Any) -> None:
    work = rig()
    w = work.weight(0)
    y, z = tp.mul_mat(w, work.x), tp.scale(tp.mul_mat(w, work.x), 2.0)
    before = work.scheduler.schedule(y)
    other = work.scheduler.schedule(z)
    work.one.lose()
    before.run({work.x: X})

    after = work.scheduler.schedule(tp.relu(y))

    np.testing.assert_allclose(other.run({work.x: X})[z], 2 * X @ W.T, rtol=1e-6)
    found = after.run({work.x: X})[after.graph.outputs[0]]
    np.testing.assert_allclose(found, np.maximum(X @ W.T, 0), rtol=1e-6)


def test_schedule_can_be_made_though_a_device_was_lost_before(rig: Any) -> None:
    work = rig()
    y = work.chain()
    work.two.lose()

    schedule = work.scheduler.schedule(y)

    np.testing.assert_allclose(schedule.run({work.x: X})[y], CHAIN, rtol=1e-6)


def test_weight_without_a_source_is_named(rig: Any) -> None:
    work = rig()
    w = work.streams[0].place("w", W, usage=tp.WEIGHTS)
    y = tp.mul_mat(w, work.x)
    schedule = work.scheduler.schedule(y)
    work.one.lose()

    with pytest.raises(RunFailed, match=r"'w'.* lay there: say with add_sources\(\)"):
        schedule.run({work.x: X})


def test_no_device_left_is_an_error(rig: Any) -> None:
    work = rig()
    y = work.chain()
    schedule = work.scheduler.schedule(y)
    for device in work.devices:
        device.lose()

    with pytest.raises(RunFailed, match="no device is left"):
        schedule.run({work.x: X})


def test_source_of_the_wrong_size_is_refused(rig: Any) -> None:
    work = rig()
    w = work.streams[0].place("w", W, usage=tp.WEIGHTS)
    work.scheduler.add_sources({w: lambda: W[:2]})
    y = tp.mul_mat(w, work.x)
    schedule = work.scheduler.schedule(y)
    work.one.lose()

    with pytest.raises(tp.GraphError, match="its source gives 32 bytes"):
        schedule.run({work.x: X})


def test_unknown_policy_is_refused(rig: Any) -> None:
    with pytest.raises(tp.OptionError, match="on_failure='retry'; choose from raise, replan"):
        rig(on_failure="retry")


def test_device_that_raises_even_when_its_memory_is_given_back_is_left_out(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = rig()
    y = work.chain()
    schedule = work.scheduler.schedule(y)
    work.two.lose("compute")
    give = work.two.give

    def raises(size: int) -> None:
        give(size)
        raise DeviceLost("gpu:1: cannot free what is gone")

    monkeypatch.setattr(work.two, "give", raises)

    result = schedule.run({work.x: X})[y]

    np.testing.assert_allclose(result, CHAIN, rtol=1e-6)
    monkeypatch.undo()


@pytest.mark.parametrize("what", ["compute", "write"])
def test_device_made_of_several_is_left_out_whole(what: str) -> None:
    parts = null_devices(2, family="part")
    both = meta.device(parts, lambda t: meta.cut(1, (2, 2)) if t.name == "w" else None)
    cpu = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True)
    streams = [both.open(), cpu.open()]
    x = tp.input("x", (4, 4), tp.F32)
    with tp.Scheduler(streams, on_failure="replan") as scheduler:
        w = streams[0].place("w", W, usage=tp.WEIGHTS)
        scheduler.add_sources({w: lambda: W})
        y = tp.relu(tp.mul_mat(w, x))
        schedule = scheduler.schedule(y)
        parts[1].lose(what)

        result = schedule.run({x: X})[y]

        np.testing.assert_allclose(result, np.maximum(X @ W.T, 0), rtol=1e-6)
        assert [b.name for b in scheduler.backends] == ["cpu:0"]
    for device in (both, *parts, cpu):
        device.close(force=True)


# --- taking a device back ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpu:0", "gpu:1"])
def test_device_that_was_taken_back_has_its_weights_and_its_work_again(rig: Any, name: str) -> None:
    work = rig()
    y = work.chain()
    schedule = work.scheduler.schedule(y)
    planned = schedule.explain().to_json()
    next(d for d in work.devices if d.name == name).lose("compute")
    schedule.run({work.x: X})

    device = work.again(name)
    result = schedule.run({work.x: X})[y]

    np.testing.assert_allclose(result, CHAIN, rtol=1e-6)
    assert [b.name for b in work.scheduler.backends] == ["gpu:0", "gpu:1", "cpu:0"]
    assert schedule.explain().to_json() == planned
    (weight,) = (t for t in schedule.graph.leafs if t.name == f"w{name[-1]}")
    assert work.scheduler.place_of(weight).buffer.type.device is device


def test_state_is_what_it_was_on_a_device_that_was_taken_back(rig: Any) -> None:
    work = rig()
    state, grown, y = work.counting(1)
    sums = [np.zeros((4, 4), np.float32)]

    def restore() -> None:
        place = work.scheduler.place_of(state)
        place.buffer.write(place.offset, sums[-1])

    work.scheduler.add_states([state], restore)
    schedule = work.scheduler.schedule(y, effects=[grown])
    work.two.lose("compute")
    schedule.run({work.x: X})

    device = work.again("gpu:1")
    result = schedule.run({work.x: X + 1})[y]

    np.testing.assert_allclose(result, (X @ W.T + (X + 1) @ W.T) @ W.T, rtol=1e-5)
    assert work.scheduler.place_of(state).buffer.type.device is device


def test_device_may_be_lost_and_taken_back_again(rig: Any) -> None:
    work = rig()
    y = work.chain()
    schedule = work.scheduler.schedule(y, pins={y: work.streams[1]})
    work.two.lose("compute")
    for _ in range(3):
        schedule.run({work.x: X})
        device = work.again("gpu:1")
        found = schedule.run({work.x: X})[y]
        assert schedule.device_of(y) == "gpu:1"
        device.lose("compute")

        np.testing.assert_allclose(found, CHAIN, rtol=1e-6)
        np.testing.assert_allclose(schedule.run({work.x: X})[y], CHAIN, rtol=1e-6)


def test_only_a_new_device_of_the_name_of_a_lost_one_is_taken_back(rig: Any) -> None:
    work = rig()
    schedule = work.scheduler.schedule(work.chain())
    with pytest.raises(tp.OptionError, match="no stream called gpu:1 was lost; lost are none"):
        work.scheduler.take_back(work.streams[1])
    work.two.lose("compute")
    schedule.run({work.x: X})

    with pytest.raises(tp.OptionError, match="of the device that was lost; open a new device"):
        work.scheduler.take_back(work.streams[1])
