"""Plans: launches one by one, captured, bound again; emulated."""

import gc
from threading import Thread

import numpy as np
import pytest

import tensorplug as tp
from tensorplug_cuda import plan
from tensorplug_emulator import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

X = np.arange(32, dtype=np.float32)


def test_first_run_launches_one_by_one_and_the_second_captures(chain, machine):
    for _ in range(4):
        chain.plan.run()
    chain.stream.synchronize()

    assert (chain.result() == 30 * X).all()
    assert (machine.captures, machine.graph_launches) == (1, 3)
    assert machine.launches == 3 + 3
    assert chain.plan.recorded


def test_captured_plan_sees_inputs_that_changed(chain):
    for _ in range(2):
        chain.plan.run()
    chain.stream.synchronize()
    chain.buffers[0].write(0, 2 * X)

    chain.plan.run()
    chain.stream.synchronize()

    assert (chain.result() == 60 * X).all()


def test_plan_that_is_bound_anew_for_each_run_is_never_captured(chain, machine):
    for _ in range(3):
        chain.plan.rebind(chain.bound())
        chain.plan.run()
    chain.stream.synchronize()

    assert machine.captures == 0
    assert (chain.result() == 30 * X).all()


def test_single_launch_is_not_captured(stream, machine):
    x = tp.input("x", (32,), tp.F32)
    y = tp.scale(x, 2.0)
    with tp.Scheduler([stream]).schedule(y) as run:
        got = [run.run({x: X})[y] for _ in range(3)]

    assert machine.captures == 0
    assert all((each == 2 * X).all() for each in got)


def refuse(*_args):
    raise RuntimeError("no memory for a graph")


def test_stream_that_cannot_capture_goes_on_launch_by_launch(chain, machine, monkeypatch):
    monkeypatch.setattr(chain.stream.sides[0], "begin_capture", refuse)
    for _ in range(3):
        chain.plan.run()
    chain.stream.synchronize()

    assert chain.plan.refusal == "no memory for a graph"
    assert not chain.plan.recorded
    assert machine.launches == 9
    assert (chain.result() == 30 * X).all()


def test_capture_that_fails_half_way_is_ended_and_nothing_is_lost(chain, machine, monkeypatch):
    from cupy.cuda.runtime import CUDARuntimeError

    real = plan.fork

    def spoiled(streams, *launches):
        real(streams, *launches)
        streams[0].queue.capture.invalid = True
        raise CUDARuntimeError(900, "spoiled")

    monkeypatch.setattr(plan, "fork", spoiled)
    for _ in range(3):
        chain.plan.run()
    chain.stream.synchronize()

    assert chain.plan.refusal.startswith("cudaErrorStreamCapture")
    assert not chain.stream.sides[0].is_capturing()
    assert machine.graph_launches == 0
    assert (chain.result() == 30 * X).all()


def test_interrupted_capture_leaves_no_part_of_a_graph(chain, monkeypatch):
    real = plan.fork

    def interrupted(streams, launches, branches):
        real(streams, launches[:1], branches._replace(turns=branches.turns[:1]))
        raise KeyboardInterrupt

    chain.plan.run()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(plan, "fork", interrupted)
        with pytest.raises(KeyboardInterrupt):
            chain.plan.run()
    chain.stream.synchronize()
    chain.buffers[0].write(0, 2 * X)

    chain.plan.run()
    chain.stream.synchronize()

    assert (chain.result() == 60 * X).all()


def test_plan_that_could_not_be_captured_is_in_other_memory(chain, monkeypatch):
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(chain.stream.sides[0], "begin_capture", refuse)
        for _ in range(2):
            chain.plan.run()
        refusal = chain.plan.refusal

    chain.plan.rebind(chain.bound())
    for _ in range(2):
        chain.plan.run()
    chain.stream.synchronize()

    assert refusal
    assert (chain.plan.recorded, chain.plan.refusal) == (True, "")
    assert (chain.result() == 30 * X).all()


def close(held):
    for each in held:
        each.close()


def close_elsewhere(held):
    thread = Thread(target=close, args=(held,))
    thread.start()
    thread.join()


def leave_to_the_collector(held):
    cycle = [*held]
    cycle.append(cycle)
    held.clear()
    del cycle
    gc.collect()


@pytest.mark.parametrize("give_back", [close, close_elsewhere, leave_to_the_collector])
def test_memory_that_goes_during_a_capture_waits_for_queued_work_and_spoils_nothing(
    chain, machine, monkeypatch, give_back
):
    device, real = chain.stream.device, plan.fork
    seen, found = np.zeros(32, np.float32), []
    held = [device.buffer_type.alloc(128), device.register_host(seen)]
    there = machine.gpus[0].allocated

    def meanwhile(*launches):
        give_back(held)
        found.append((seen.copy(), there - machine.gpus[0].allocated))
        return real(*launches)

    monkeypatch.setattr(plan, "fork", meanwhile)
    chain.plan.run()
    chain.stream.read_async(chain.buffers[0], 3 * 128, memoryview(seen).cast("B"))
    for _ in range(2):
        chain.plan.run()
    chain.stream.synchronize()

    ((then, freed),) = found
    assert (then == 30 * X).all()
    assert freed == 128
    assert (chain.plan.recorded, chain.plan.refusal, machine.captures) == (True, "", 1)
    assert (chain.result() == 30 * X).all()


def test_traced_plan_is_timed_launch_by_launch(chain, machine):
    for _ in range(2):
        chain.plan.run()
    chain.stream.profile = True
    chain.plan.run()
    chain.stream.synchronize()

    spans = chain.stream.take_spans()

    assert [span.name for span in spans] == ["scale"] * 3
    assert all(span.start <= span.end for span in spans)
    assert machine.graph_launches == 1
    assert list(chain.stream.take_spans()) == []


def test_short_launches_are_timed_after_many_minutes_too(chain):
    chain.stream.profile = True
    chain.stream.stream.queue.clock += 600_000.0  # of milliseconds

    chain.plan.run()
    chain.stream.synchronize()

    lengths = [span.end - span.start for span in chain.stream.take_spans()]
    assert lengths == pytest.approx([1000] * 3, rel=0.01)


def test_closing_a_plan_waits_for_its_graph(chain):
    for _ in range(2):
        chain.plan.run()

    chain.plan.close()

    assert (chain.result() == 30 * X).all()


def test_memory_of_another_device_is_out_of_reach(pair):
    first, second = pair
    x = tp.input("x", (32,), tp.F32)
    y = tp.scale(x, 2.0)
    with first.open() as stream, second.buffer_type.alloc(512) as theirs:
        places = {x: tp.Place(theirs, 0), y: tp.Place(theirs, 256)}

        with pytest.raises(tp.Unsupported, match="kernels cannot reach"):
            stream.plan(tp.Part.of(tp.Graph(y), tp.Bindings(places)))


def test_grids_that_are_long_along_y_are_folded(stream):
    x = tp.input("x", (70_000, 1, 3), tp.F32)
    data = np.arange(210_000, dtype=np.float32).reshape(70_000, 1, 3)

    y = tp.repeat(x, (70_000, 2, 3))

    with tp.Scheduler([stream]).schedule(y) as run:
        got = run.run({x: data})[y]

    assert (got == data).all()
