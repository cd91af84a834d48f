"""The program of a schedule: steps as data, and the loop that runs them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.errors import RunFailed
from tensorplug.graph.tensor import Tensor
from tensorplug.planning.program import (
    Program,
    Read,
    Run,
    Signal,
    To,
    Until,
    Wait,
    Waiters,
    observed,
    settling,
)
from tensorplug.running.run import DO, RunContext, StepFailed, run
from tensorplug_testing.null import NullDevice

X = np.ones((4, 4), np.float32)


@pytest.fixture
def streams() -> Iterator[list[tp.Backend]]:
    gpu = NullDevice("gpu:0", asynchronous=True, async_copy=True, events=True)
    cpu = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True)
    yield [gpu.open(), cpu.open()]
    gpu.close(force=True)
    cpu.close(force=True)


@pytest.fixture
def crossing(streams: list[tp.Backend]) -> Iterator[tp.Schedule]:
    """Three splits: on the first stream, on the second, on the first again."""
    x = tp.input("x", (4, 4), tp.F32)
    a = tp.relu(x, name="a")
    b = tp.scale(a, 2.0, name="b")
    c = tp.add(b, a, name="c")
    with tp.Scheduler(streams, parallel=True) as scheduler:
        yield scheduler.schedule(c, pins={a: streams[0], b: streams[1], c: streams[0]})


def kinds(program: Program) -> list[str]:
    return [type(step).__name__ for step in program]


def test_a_run_copies_what_a_split_reads_and_then_computes_it(crossing: tp.Schedule) -> None:
    program = crossing._run_program

    assert kinds(program) == ["Copy", "Run", "Copy", "Run", "Copy", "Run"]
    assert [step.title(["gpu", "cpu"]) for step in program] == [
        *("copy x", "relu to relu"),
        *("copy a", "scale to scale"),
        *("copy b", "add to add"),
    ]


@pytest.mark.parametrize("in_flight", [False, True])
def test_no_step_reads_what_no_earlier_step_wrote(crossing: tp.Schedule, in_flight: bool) -> None:
    there = set(crossing.graph.inputs)

    for step in crossing._flight_program if in_flight else crossing._run_program:
        assert {t.root for t in step.reads} <= there
        there |= {t.root for t in step.writes}

    assert {output.root for output in crossing.graph.outputs} <= there


def test_a_batch_ends_with_reads_and_a_mark_for_each_stream(crossing: tp.Schedule) -> None:
    program = crossing._flight_program

    last = [step for step in program if step.split is None]
    assert last[0] == Read(0, None, crossing.graph.outputs[0], To.LATER)
    assert [s.stream for s in last if isinstance(s, Signal) and s.waiters is Waiters.BATCH] == [
        0,
        1,
    ]


def test_results_of_a_stream_that_queues_transfers_are_queued_before_the_host_waits() -> None:
    device = NullDevice("far:0", asynchronous=True, async_copy=True, events=True)
    x = tp.input("x", (4, 4), tp.F32)
    y = tp.scale(x, 2.0)
    order: list[str] = []
    with device.open() as stream, tp.Scheduler([stream]) as scheduler:
        results = scheduler.schedule(y).run({x: X})
        queue, wait = stream.read_async, stream._synchronize
        stream.read_async = lambda *given: (order.append("read"), queue(*given))
        stream._synchronize = lambda: (order.append("wait"), wait())
        assert results[y].tolist() == (2 * X).tolist()
    device.close(force=True)

    assert order[:2] == ["read", "wait"]


def test_each_split_of_a_batch_waits_for_who_still_uses_its_memory(crossing: tp.Schedule) -> None:
    program = crossing._flight_program

    waits = [s for s in program if isinstance(s, Wait) and s.until is Until.FREE]
    assert [(s.split, s.stream) for s in waits] == [(0, 0), (1, 1), (2, 0)]


def test_an_observed_split_is_cut_behind_the_nodes_that_are_wanted(streams: list[Any]) -> None:
    x = tp.input("x", (4, 4), tp.F32)
    a, b = tp.relu(x, name="a"), tp.scale(x, 2.0, name="b")
    c = tp.add(a, b, name="c")
    with tp.Scheduler(streams[1:]) as scheduler:
        schedule = scheduler.schedule(c, fuse=False)

        cut = observed(schedule._run_program, lambda node: node is b)

    assert kinds(cut) == ["Run", "Read", "Run"]
    assert [step.nodes for step in cut if isinstance(step, Run)] == [(a, b), (c,)]
    assert cut[1] == Read(0, 0, b, To.OBSERVER)


def test_a_device_that_fails_stops_the_loop_at_the_step(streams: list[tp.Backend]) -> None:
    with tp.Scheduler(streams) as scheduler:
        fleet = scheduler._runs.fleet
        streams[1].device.lose()
        program = settling(2)

        def synchronize(step: Wait, fleet: Any, work: RunContext) -> None:
            fleet.backends[step.stream].device.check_alive()

        with pytest.raises(StepFailed) as failed:
            run(program, fleet, RunContext(), {**DO, Wait: synchronize})

    assert (failed.value.number, failed.value.step) == (1, program[1])
    assert isinstance(failed.value.__cause__, tp.DeviceLost)


def test_an_error_of_the_program_leaves_the_loop_as_it_is(streams: list[tp.Backend]) -> None:
    def refuse(_step: Wait, _fleet: Any, _work: RunContext) -> None:
        raise tp.GraphError("no")

    with tp.Scheduler(streams) as scheduler, pytest.raises(tp.GraphError, match="no"):
        run(settling(2), scheduler._runs.fleet, RunContext(), {**DO, Wait: refuse})


def test_steps_are_called_as_they_are_where_nothing_observes(streams: list[tp.Backend]) -> None:
    with tp.Scheduler(streams) as scheduler:
        assert scheduler._runs.fleet.calls == DO
    with tp.Scheduler(streams, trace=tp.Trace()) as scheduler:
        assert scheduler._runs.fleet.calls != DO


def test_an_observer_is_asked_before_anything_runs(streams: list[tp.Backend]) -> None:
    x = tp.input("x", (4, 4), tp.F32)
    y = tp.relu(tp.scale(x, 2.0))
    events: list[str] = []

    class Observer:
        def wants(self, node: Tensor) -> bool:
            events.append(f"wants {node.op}")
            return True

        def see(self, node: Tensor, value: Any) -> bool:
            events.append(f"sees {node.op}")
            return True

    with tp.Scheduler(streams[1:]) as scheduler:
        scheduler.schedule(y, fuse=False).run({x: X}, observer=Observer())

    assert events == ["wants scale", "wants relu", "sees scale", "sees relu"]


def test_a_failure_names_its_step_as_the_explanation_lists_it(crossing: tp.Schedule) -> None:
    device = crossing.runs.fleet.backends[1].device
    assert isinstance(device, NullDevice)
    device.fail("compute")
    (x,) = crossing.graph.inputs

    with pytest.raises(RunFailed) as error:
        crossing.submit({x: X})

    rows = crossing.explain().steps
    number, title = error.value.state.step.split(" ", 1)
    assert f"of {len(rows)} ({rows[int(number)].text})" == title


def test_an_explanation_lists_the_uploads_and_then_the_program(crossing: tp.Schedule) -> None:
    rows = crossing.explain().steps

    assert [(row.device, row.text, row.split) for row in rows[:3]] == [
        ("cpu:0", "write x", None),
        ("gpu:0", "wait for earlier batches", 0),
        ("gpu:0", "copy x", 0),
    ]
    assert len(rows) == 1 + len(crossing._flight_program)
