"""States of lost devices: restored, written again, or refused."""

from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.errors import DeviceLost, RunFailed
from tensorplug.graph.tensor import Tensor

X = np.arange(16, dtype=np.float32).reshape(4, 4) - 5
W = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)

CHAIN = np.maximum(X @ W.T @ W.T, 0)


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
    state, grown, y = work.counting(home)
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
    state, grown, y = work.counting(1)
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
    state, grown, y = work.counting(1)
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
    state, grown, y = work.counting(2)
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
        scheduler.add_sources(work.scheduler._runs.lost.sources)
        schedule = scheduler.schedule(y)
        work.two.lose("compute", at=3)

        flying = [schedule.submit({work.x: X + i}) for i in range(4)]
        found = [flight[y] for flight in flying]

    expected = [np.maximum((X + i) @ W.T @ W.T, 0) for i in range(4)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def copying(work: Any, on_failure: str) -> tuple[tp.Scheduler, Any, Tensor]:
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
    _, grown, y = work.counting(0)
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
