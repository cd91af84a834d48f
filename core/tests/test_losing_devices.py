"""A device fails in the middle of a schedule: what the error says, and runs that go on without."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import meta
from tensorplug.device import Backend
from tensorplug.errors import DeviceHung, DeviceLost, RunFailed
from tensorplug.graph.tensor import Tensor
from tensorplug_testing.null import NullDevice, null_devices

X = np.arange(16, dtype=np.float32).reshape(4, 4) - 5
W = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


class Rig:
    """Two devices with memory of their own and a host device: a chain through all three."""

    def __init__(
        self, *, on_failure: str = "replan", hang_limit: float | None = None, **options: Any
    ) -> None:
        self.one, self.two = null_devices(2, family="gpu", seed=1, **options)
        self.cpu = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True)
        self.devices = [self.one, self.two, self.cpu]
        self.streams: list[Backend] = [d.open() for d in self.devices]
        self.scheduler = tp.Scheduler(self.streams, on_failure=on_failure, hang_limit=hang_limit)
        self.x = tp.input("x", (4, 4), tp.F32)

    def weight(self, device: int, name: str = "w") -> Tensor:
        """A weight on a device, with its source."""
        tensor = self.streams[device].place(name, W, usage=tp.WEIGHTS)
        self.scheduler.add_sources({tensor: lambda: W})
        return tensor

    def chain(self) -> Tensor:
        """A product on each of the first two devices, and one that both refuse."""
        first = tp.mul_mat(self.weight(0, "w0"), self.x, name="first")
        second = tp.mul_mat(self.weight(1, "w1"), first, name="second")
        return tp.relu(second, name="last")

    def again(self, name: str) -> NullDevice:
        """Take a new device back in the place of a lost one."""
        device = NullDevice(name)
        self.devices.append(device)
        self.scheduler.take_back(device.open())
        return device

    def close(self) -> None:
        self.scheduler.close(force=True)
        for device in self.devices:
            device.close(force=True)


CHAIN = np.maximum(X @ W.T @ W.T, 0)


@pytest.fixture
def rig() -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(**options: Any) -> Rig:
        made.append(Rig(**options))
        return made[-1]

    yield make
    for each in made:
        each.close()


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


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("what", FAULTS)
@pytest.mark.parametrize("which", [0, 1])
def test_run_gives_the_same_without_a_device_that_is_lost_in_it(
    rig: Any, which: int, what: str, asynchronous: bool
) -> None:
    work = rig(asynchronous=asynchronous)
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
    assert schedule.backend_of(y) == "cpu:0"


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


# --- states ------------------------------------------------------------------------------------


def counting(rig: Rig, home: int) -> tuple[Tensor, Tensor, Tensor]:
    """A state that grows by what a product on the first device gives."""
    state = rig.streams[home].place("state", np.zeros((4, 4), np.float32))
    product = tp.mul_mat(rig.weight(0), rig.x)
    grown = tp.cpy(state + product, state)
    return state, grown, tp.mul_mat(rig.weight(1, "w1"), tp.cont(grown))


def test_state_that_would_grow_twice_is_not_written_again(rig: Any) -> None:
    work = rig(asynchronous=True)
    state = work.streams[2].place("state", np.zeros((4, 4), np.float32))
    y = tp.mul_mat(work.weight(0), work.x)
    total = state + work.x
    grown = tp.cpy(total, state)
    pins = dict.fromkeys((total, grown), work.streams[2])
    schedule = work.scheduler.schedule(y, effects=[grown], pins=pins)
    work.one.lose("compute")

    with pytest.raises(RunFailed, match=r"'state'.* writing it again .* add_states\(\)"):
        schedule.run({work.x: X})


@pytest.mark.parametrize("home", [0, 1, 2])
@pytest.mark.parametrize("lost", [0, 1])
def test_state_is_restored_and_the_run_begins_again(rig: Any, home: int, lost: int) -> None:
    work = rig()
    state, grown, y = counting(work, home)
    saved = np.zeros((4, 4), np.float32)

    def restore() -> None:
        place = work.scheduler.place_of(state)
        place.buffer.write(place.offset, saved)

    work.scheduler.add_states([state], restore)
    schedule = work.scheduler.schedule(y, effects=[grown])
    schedule.run({work.x: X})
    saved[...] = X @ W.T
    work.devices[lost].lose("compute")

    result = schedule.run({work.x: X + 1})[y]

    np.testing.assert_allclose(result, (X @ W.T + (X + 1) @ W.T) @ W.T, rtol=1e-5)


def test_restoring_may_run_the_same_schedule(rig: Any) -> None:
    work = rig()
    state, grown, y = counting(work, 1)
    schedule = work.scheduler.schedule(y, effects=[grown])
    history: list[np.ndarray] = []

    def restore() -> None:
        place = work.scheduler.place_of(state)
        place.buffer.fill(0, place.offset, state.nbytes)
        for x in history:
            schedule.run({work.x: x})

    work.scheduler.add_states([state], restore)
    for i in range(3):
        schedule.run({work.x: X + i})
        history.append(X + i)
    work.two.lose("compute")

    result = schedule.run({work.x: X + 3})[y]

    np.testing.assert_allclose(result, (4 * X + 6) @ W.T @ W.T, rtol=1e-5)


def test_restoring_begins_anew_where_another_device_fails_in_it(rig: Any) -> None:
    work = rig()
    state, grown, y = counting(work, 1)
    schedule = work.scheduler.schedule(y, effects=[grown])
    calls: list[int] = []

    def restore() -> None:
        calls.append(len(work.scheduler.backends))
        place = work.scheduler.place_of(state)
        place.buffer.fill(0, place.offset, state.nbytes)
        for i in range(3):
            schedule.run({work.x: X + i})

    work.scheduler.add_states([state], restore)
    for i in range(3):
        schedule.run({work.x: X + i})
    work.two.lose("compute")
    work.one.lose("compute", at=4)

    result = schedule.run({work.x: X + 3})[y]

    np.testing.assert_allclose(result, (4 * X + 6) @ W.T @ W.T, rtol=1e-5)
    assert calls == [2, 1]


def test_state_of_batches_in_flight_is_not_restored(rig: Any) -> None:
    work = rig()
    state, grown, y = counting(work, 2)
    with tp.Scheduler(work.streams, parallel=True, on_failure="replan") as scheduler:
        scheduler.add_sources({t: lambda: W for t in tp.Graph(y).leafs if t.name in ("w", "w1")})
        scheduler.add_states([state], lambda: None)
        schedule = scheduler.schedule(y, effects=[grown])
        work.two.lose("compute", at=2)

        with pytest.raises(RunFailed, match=r"'state'.* must be restored, .*: run\(\) them one"):
            [schedule.submit({work.x: X})[y] for _ in range(3)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_batches_in_flight_run_again_on_a_state_that_takes_it(rig: Any, asynchronous: bool) -> None:
    work = rig(asynchronous=asynchronous)
    table = work.streams[1].place("table", np.zeros((12, 4), np.float32))
    ids = tp.input("ids", (4,), tp.I32)
    write = tp.set_rows(table, tp.mul_mat(work.weight(0), work.x), ids)
    y = tp.cont(write)
    wanted = np.concatenate([(X + i) @ W.T for i in range(3)])

    def restore() -> None:
        place = work.scheduler.place_of(table)
        place.buffer.write(place.offset, np.zeros((12, 4), np.float32))

    with tp.Scheduler(work.streams, parallel=True, on_failure="replan") as scheduler:
        work.scheduler = scheduler
        scheduler.add_sources({t: lambda: W for t in tp.Graph(y).leafs if t.name in ("w", "w0")})
        scheduler.add_states([table], restore, repeats=True)
        schedule = scheduler.schedule(y, effects=[write])
        work.two.lose("compute", at=2)
        flights = [
            schedule.submit({work.x: X + i, ids: np.arange(4 * i, 4 * i + 4)}) for i in range(3)
        ]

        for i, flight in enumerate(flights):
            rows = slice(4 * i, 4 * i + 4)
            np.testing.assert_allclose(flight[y][rows], wanted[rows], rtol=1e-5)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_batches_in_flight_are_right_without_a_device_that_is_lost(
    rig: Any, asynchronous: bool
) -> None:
    work = rig(asynchronous=asynchronous)
    y = work.chain()
    with tp.Scheduler(work.streams, parallel=True, on_failure="replan") as scheduler:
        scheduler.add_sources(work.scheduler.lost.sources)
        schedule = scheduler.schedule(y)
        work.two.lose("compute", at=3)

        flying = [schedule.submit({work.x: X + i}) for i in range(4)]
        found = [flight[y] for flight in flying]

    expected = [np.maximum((X + i) @ W.T @ W.T, 0) for i in range(4)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def copying(work: Rig, on_failure: str) -> tuple[tp.Scheduler, Any, Tensor]:
    """A batch in flight on the second device, which reads a weight of the first."""
    w = work.weight(0)
    y = tp.mul_mat(tp.cont(w), work.x)
    pins = {y: work.streams[1], y.sources[0]: work.streams[1]}
    scheduler = tp.Scheduler(work.streams, parallel=True, on_failure=on_failure)
    scheduler.add_sources({w: lambda: W})
    flight = scheduler.schedule(y, pins=pins).submit({work.x: X})
    work.one.fail("read")
    return scheduler, flight, y


def test_batch_whose_copies_failed_is_not_taken_for_done(rig: Any) -> None:
    scheduler, flight, y = copying(rig(asynchronous=True, async_copy=False), "raise")

    with pytest.raises(RunFailed, match="gpu:0: failed"):
        flight[y]

    scheduler.close(force=True)


def test_batch_whose_copies_failed_runs_again(rig: Any) -> None:
    scheduler, flight, y = copying(rig(asynchronous=True, async_copy=False), "replan")

    result = flight[y]

    np.testing.assert_allclose(result, X @ W.T, rtol=1e-6)
    scheduler.close(force=True)


def test_rows_that_are_written_and_then_read_need_no_restoring(rig: Any) -> None:
    work = rig()
    table = work.streams[2].place("table", np.zeros((4, 4), np.float32))
    rows = tp.input("rows", (4,), tp.I32)
    write = tp.set_rows(table, tp.mul_mat(work.weight(0), work.x), rows)
    y = tp.mul_mat(work.weight(1, "w1"), tp.cont(write))
    schedule = work.scheduler.schedule(y, effects=[write])
    work.two.lose("compute")

    result = schedule.run({work.x: X, rows: np.array([3, 2, 1, 0], np.int32)})[y]

    np.testing.assert_allclose(result, (X @ W.T)[::-1] @ W.T, rtol=1e-6)


def test_lost_state_that_nobody_restores_is_named(rig: Any) -> None:
    work = rig()
    _, grown, y = counting(work, 0)
    schedule = work.scheduler.schedule(y, effects=[grown])
    work.one.lose()

    with pytest.raises(RunFailed, match=r"'state'.* lay there: say with add_states\(\)"):
        schedule.run({work.x: X})


def test_place_of_an_untouched_tensor_is_its_own(rig: Any) -> None:
    work = rig()
    w = work.weight(0)

    assert work.scheduler.place_of(w) == w.place


def test_what_lies_on_a_lost_device_and_nobody_gives_again_is_an_error_at_planning(
    rig: Any,
) -> None:
    work = rig()
    y = work.chain()
    schedule = work.scheduler.schedule(y)
    orphan = work.streams[0].place("orphan", W)
    work.one.lose()
    schedule.run({work.x: X})

    with pytest.raises((RunFailed, DeviceLost), match=r"'orphan'.*lay on a device that was lost"):
        work.scheduler.schedule(tp.relu(orphan))


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
    state, grown, y = counting(work, 1)
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
        assert schedule.backend_of(y) == "gpu:1"
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


# --- boundaries ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "asynchronous"), [("compute", False), ("compute", True), ("copy", True)]
)
def test_run_goes_on_from_the_last_boundary_that_is_done(
    rig: Any, what: str, asynchronous: bool
) -> None:
    work = rig(asynchronous=asynchronous)
    y = work.chain()
    schedule = work.scheduler.schedule(y, pins={y: work.streams[2]})
    work.two.lose(what)
    work.one.log.clear()

    result = schedule.run({work.x: X})[y]

    (survived,) = work.scheduler.survived
    np.testing.assert_allclose(result, CHAIN, rtol=1e-6)
    assert (survived.devices, survived.boundary) == (("gpu:1",), 1)
    assert survived.not_later == (
        ("split 1 is not known to be done",) if survived.split != 1 else ()
    )
    assert work.one.computed.count("mul_mat") == 2 - (schedule.backend_of(y.sources[0]) != "gpu:0")


def test_state_that_grew_before_the_boundary_does_not_grow_again(rig: Any) -> None:
    work = rig()
    _, grown, y = counting(work, 2)
    schedule = work.scheduler.schedule(y, effects=[grown])
    work.two.lose("compute")

    results = [schedule.run({work.x: X})[y] for _ in range(2)]

    np.testing.assert_allclose(results[0], X @ W.T @ W.T, rtol=1e-5)
    np.testing.assert_allclose(results[1], 2 * X @ W.T @ W.T, rtol=1e-5)
    assert work.scheduler.survived[0].boundary == 2


def test_device_that_is_used_again_later_leaves_copies_of_what_it_made(rig: Any) -> None:
    work = rig()
    first = tp.mul_mat(work.weight(0, "w0"), work.x)
    y = tp.mul_mat(work.weight(0, "w1"), tp.relu(first))
    pins = {y.sources[1]: work.streams[1]}
    schedule = work.scheduler.schedule(tp.add(y, y.sources[1]), pins=pins)
    work.one.lose("compute", at=2)

    (output,) = schedule.graph.outputs
    result = schedule.run({work.x: X})[output]

    hidden = np.maximum(X @ W.T, 0)
    np.testing.assert_allclose(result, hidden @ W.T + hidden, rtol=1e-5)
    assert work.scheduler.survived[0].boundary == 2


def test_run_goes_on_from_before_the_first_state_was_written_where_one_is_restored(
    rig: Any,
) -> None:
    work = rig()
    state, grown, y = counting(work, 2)
    other = work.streams[1].place("other", np.zeros((4, 4), np.float32))
    second = tp.cpy(other + y, other)
    z = tp.cont(second)
    work.scheduler.add_states(
        [state, other],
        lambda: [
            work.scheduler.place_of(t).buffer.fill(0, work.scheduler.place_of(t).offset, t.nbytes)
            for t in (state, other)
        ],
    )
    schedule = work.scheduler.schedule(z, effects=[grown])
    work.two.lose("compute", at=2)

    result = schedule.run({work.x: X})[z]

    (survived,) = work.scheduler.survived
    np.testing.assert_allclose(result, X @ W.T @ W.T, rtol=1e-5)
    assert survived.boundary == 1
    assert survived.not_later == (
        f"not from behind split 1: {state} was written before that, and restoring goes back to the "
        "inputs",
    )


def test_second_loss_goes_on_from_where_the_first_one_did_or_later(rig: Any) -> None:
    work = rig()
    y = work.chain()
    schedule = work.scheduler.schedule(y, pins={y: work.streams[2]})
    work.two.lose("compute")
    work.one.lose("compute", at=2)

    result = schedule.run({work.x: X})[y]

    np.testing.assert_allclose(result, CHAIN, rtol=1e-6)
    assert [b.name for b in work.scheduler.backends] == ["cpu:0"]
    assert [state.boundary for state in work.scheduler.survived] == [1, 1]
    assert work.cpu.computed.count("mul_mat") == 1


def test_error_says_why_a_run_does_not_go_on_from_a_boundary(rig: Any) -> None:
    work = rig()
    _, grown, y = counting(work, 1)
    schedule = work.scheduler.schedule(y, effects=[grown])
    work.two.lose("compute")

    with pytest.raises(
        RunFailed, match=r"; not from behind split 0: .*'state'.* lay there"
    ) as error:
        schedule.run({work.x: X})

    assert error.value.state.boundary is None
    assert len(error.value.state.not_later) == 1


def test_value_that_later_work_may_have_written_over_is_not_taken(rig: Any) -> None:
    work = rig(asynchronous=True)
    first = tp.mul_mat(work.weight(0, "w0"), work.x)
    second = tp.mul_mat(work.weight(1, "w1"), first)
    third = tp.ops.in_place(tp.scale(first, 2.0))
    y = tp.add(tp.relu(second), third)
    pins = {third: work.streams[0], y.sources[0]: work.streams[0], y: work.streams[0]}
    schedule = work.scheduler.schedule(y, pins=pins)
    work.two.lose("compute")

    result = schedule.run({work.x: X})[y]

    product = X @ W.T
    np.testing.assert_allclose(result, np.maximum(product @ W.T, 0) + 2 * product, rtol=1e-5)
    assert work.scheduler.survived[0].boundary == 0


def test_copy_whose_memory_was_used_again_is_not_taken(rig: Any) -> None:
    work = rig()
    first = tp.relu(work.x)
    twice = tp.scale(first, 2.0)
    between = tp.mul_mat(twice, twice)
    last = tp.mul_mat(work.weight(0), between)
    pins = {first: work.streams[0], last: work.streams[0]}
    pins |= dict.fromkeys((twice, between), work.streams[1])
    schedule = work.scheduler.schedule([last, first], pins=pins)
    work.one.lose("compute", at=2)

    results = schedule.run({work.x: X})

    hidden = np.maximum(X, 0)
    np.testing.assert_allclose(results[first], hidden)
    np.testing.assert_allclose(results[last], 4 * hidden @ hidden.T @ W.T, rtol=1e-5)
    assert "lay on gpu:0" in work.scheduler.survived[0].not_later[0]


def test_value_that_cannot_be_read_is_computed_again(rig: Any) -> None:
    work = rig()
    y = work.chain()
    schedule = work.scheduler.schedule(y, pins={y: work.streams[2]})
    work.two.lose("compute")
    work.one.fail("read", at=2)

    result = schedule.run({work.x: X})[y]

    np.testing.assert_allclose(result, CHAIN, rtol=1e-6)
    assert work.scheduler.survived[0].boundary in (0, 1)


def test_later_runs_are_planned_without_the_boundary(rig: Any) -> None:
    work = rig()
    y = work.chain()
    schedule = work.scheduler.schedule(y)
    work.two.lose("compute")
    work.one.lose("compute", at=2)
    schedule.run({work.x: X})
    splits = len(schedule.splits)

    schedule.run({work.x: X})

    assert (splits, len(schedule.splits)) == (2, 1)


# --- devices that hang -------------------------------------------------------------------------

LIMIT = 0.1


@pytest.fixture
def hanging(rig: Any) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(**options: Any) -> Rig:
        made.append(rig(hang_limit=LIMIT, **options))
        return made[-1]

    yield make
    for each in made:
        for device in each.devices:
            device.release()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_device_that_hangs_is_named_and_its_bytes_stay_held(
    hanging: Any, asynchronous: bool
) -> None:
    work = hanging(on_failure="raise", asynchronous=asynchronous)
    y = work.chain()
    schedule = work.scheduler.schedule(y)
    before = work.two.live_buffers
    work.two.hang(limit=60)

    with pytest.raises(RunFailed) as error:
        schedule.run({work.x: X})[y]
    work.scheduler.close(force=True)

    assert (error.value.state.devices, error.value.state.cause) == (("gpu:1",), "hung")
    assert error.value.state.held["gpu:1"] > 0
    assert isinstance(error.value.__cause__, DeviceHung)
    assert work.two.live_buffers == before


def test_nothing_runs_in_memory_that_a_hung_device_may_use(hanging: Any) -> None:
    work = hanging(on_failure="raise")
    y = work.chain()
    schedule = work.scheduler.schedule(y)
    work.two.hang(limit=60)
    with pytest.raises(RunFailed):
        schedule.run({work.x: X})[y]

    with pytest.raises(RunFailed, match="gpu:1: hung"):
        schedule.run({work.x: X})
    with pytest.raises(RunFailed, match="gpu:1: hung"):
        work.scheduler.schedule(y)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("which", [0, 1])
def test_run_gives_the_same_without_a_device_that_hangs(
    hanging: Any, which: int, asynchronous: bool
) -> None:
    work = hanging(asynchronous=asynchronous)
    y = work.chain()
    schedule = work.scheduler.schedule(y)
    schedule.run({work.x: X})
    work.devices[which].hang(limit=60)

    first = schedule.run({work.x: X})[y]
    work.devices[which].release()
    second = schedule.run({work.x: X + 1})[y]

    np.testing.assert_allclose(first, CHAIN, rtol=1e-6)
    np.testing.assert_allclose(second, np.maximum((X + 1) @ W.T @ W.T, 0), rtol=1e-6)


def test_memory_of_a_hung_device_is_given_back_when_its_call_returns(hanging: Any) -> None:
    work = hanging()
    y = work.chain()
    weights = work.two.live_buffers
    schedule = work.scheduler.schedule(y)
    work.two.hang(limit=60)
    schedule.run({work.x: X})

    work.two.release()

    assert wait_until(lambda: work.two.live_buffers == weights)


def wait_until(holds: Callable[[], bool]) -> bool:
    """Wait for other threads, ten seconds at most."""
    clock = threading.Event()
    return any(holds() or clock.wait(0.02) for _ in range(500))


def test_what_a_hung_device_may_still_write_is_restored_elsewhere(hanging: Any) -> None:
    work = hanging(host=True)
    state = work.streams[2].place("state", np.zeros((4, 4), np.float32))
    write = tp.cpy(tp.mul_mat(work.weight(0), work.x), state)
    y = tp.cont(write)
    schedule = work.scheduler.schedule(y, effects=[write], pins={write: work.streams[0]})
    work.scheduler.add_states([state], lambda: None)
    work.one.hang("queue", limit=60)

    result = schedule.run({work.x: X})[y]

    np.testing.assert_allclose(result, X @ W.T, rtol=1e-6)
    assert work.scheduler.place_of(state) != state.place


def test_limit_of_no_time_is_refused(hanging: Any, rig: Any) -> None:
    with pytest.raises(tp.OptionError, match="hang_limit=0; give seconds"):
        rig(hang_limit=0)


def test_call_within_the_limit_returns_what_it_returns(hanging: Any) -> None:
    work = hanging()
    y = work.chain()

    result = work.scheduler.schedule(y).run({work.x: X})[y]

    np.testing.assert_allclose(result, CHAIN, rtol=1e-6)


def test_thread_for_calls_ends_with_the_scheduler(hanging: Any) -> None:
    work = hanging()
    y = work.chain()
    work.scheduler.schedule(y).run({work.x: X})
    (mine,) = [t for t in threading.enumerate() if t.name == "tensorplug call"]

    work.scheduler.close(force=True)
    mine.join(10)

    assert not mine.is_alive()
