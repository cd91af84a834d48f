"""Runs that resume behind a split that is done."""

from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.errors import RunFailed

X = np.arange(16, dtype=np.float32).reshape(4, 4) - 5
W = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)

CHAIN = np.maximum(X @ W.T @ W.T, 0)


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
    assert work.one.computed.count("mul_mat") == 2 - (schedule.device_of(y.sources[0]) != "gpu:0")


def test_state_that_grew_before_the_boundary_does_not_grow_again(rig: Any) -> None:
    work = rig()
    _, grown, y = work.counting(2)
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
    state, grown, y = work.counting(2)
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
    _, grown, y = work.counting(1)
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
