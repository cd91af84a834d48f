"""Faults planted in the backend, each of which the emulated GPU brings to light."""

from collections.abc import Callable

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import DeviceError, Plan, place_in
from tensorplug.errors import RunFailed
from tensorplug.graph.tensor import leaf
from tensorplug_emulator import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

X = np.arange(1, 33, dtype=np.float32)


def steps(stream):
    """Three steps in a row, each of which needs the one before: 30 times some numbers."""
    x = tp.input("x", (32,), tp.F32)
    y = tp.scale(tp.relu(tp.scale(x, 2.0)), 15.0)
    with tp.Scheduler([stream]).schedule(y, fuse=False) as run:
        # A copy: what lands in the results after they were given out comes too late.
        return run.run({x: X})[y].copy()


def overwritten(stream):
    """Twice what lay in memory before it was overwritten."""
    cache = stream.place("cache", X)
    kept = tp.scale(cache, 2.0)
    new = tp.scale(tp.input("x", (32,), tp.F32), 1.0)
    with tp.Scheduler([stream]).schedule(kept, effects=[tp.cpy(new, cache)], fuse=False) as run:
        return run.run({new.sources[0]: np.zeros(32, np.float32)})[kept]


def twice_imported(stream):
    """Twice what lies behind two buffers, one of which is written: 6 times some numbers."""
    data = np.zeros(1024, np.float32)
    data[:32] = X
    with stream.device.import_host(data) as first, stream.device.import_host(data) as second:
        x = place_in(leaf("x", (32,), tp.F32), first, 0)
        out = place_in(leaf("out", (32,), tp.F32), second, 256)
        again = place_in(leaf("again", (32,), tp.F32), first, 256)
        write, read = tp.cpy(tp.scale(x, 3.0), out), tp.scale(again, 2.0)
        with tp.Scheduler([stream]) as scheduler:
            with scheduler.schedule(write) as run:
                run.run({})
            with scheduler.schedule(read) as run:
                return run.run({})[read]


def test_launches_over_memory_that_was_imported_twice_are_not_merged(stream):
    data = np.zeros(1024, np.float32)
    data[:32] = X
    with stream.device.import_host(data) as first, stream.device.import_host(data) as second:
        ins = [place_in(leaf(f"in{i}", (32,), tp.F32), first, 256 * i) for i in range(3)]
        outs = [place_in(leaf(f"out{i}", (32,), tp.F32), second, 256 * i) for i in range(3)]
        writes = [tp.cpy(ins[i], outs[i + 1]) for i in range(2)]
        with tp.Scheduler([stream], ahead=0).schedule(writes[-1], effects=writes[:1]) as run:
            run.run({})
            stream.synchronize()
            (plan,) = (child for child in stream.children if isinstance(child, Plan))
            launches, barriers = plan.launches, plan.barriers

    assert (launches, barriers) == (2, 1)
    assert (data[128:160] == X).all()


def never(*_args: object, **_kwargs: object) -> list[int]:
    return []


def without_barriers(monkeypatch) -> None:
    from tensorplug_metal import launches

    monkeypatch.setattr(launches, "barriers", lambda placed: [False] * len(list(placed)))


def with_hazards_ignored(monkeypatch) -> None:
    """The reorder pass does not see writes, and barriers are not looked for."""
    from tensorplug.planning import stages

    monkeypatch.setattr(stages._Changing, "holds", lambda self, tensor: False)
    without_barriers(monkeypatch)


def with_stages_reversed(monkeypatch) -> None:
    from tensorplug.planning import arrange

    real: Callable[..., tuple] = arrange.arrange
    monkeypatch.setattr(arrange, "arrange", lambda *a, **k: tuple(reversed(real(*a, **k))))


def without_waiting(monkeypatch) -> None:
    from tensorplug_metal.work import WorkQueue

    monkeypatch.setattr(WorkQueue, "finish", lambda self: None)
    # Memory that was not written may hold the results of an earlier run.
    monkeypatch.setattr("tensorplug.running.run.np.empty", np.zeros)


PLANTED = {
    "a missing barrier": (without_barriers, steps, 30 * X),
    "a hazard that the reorder pass ignores": (with_hazards_ignored, overwritten, 2 * X),
    "stages in the wrong order": (with_stages_reversed, steps, 30 * X),
    "a missing wait": (without_waiting, steps, 30 * X),
}


@pytest.mark.parametrize(("plant", "compute", "expected"), PLANTED.values(), ids=PLANTED)
def test_fault_changes_the_result(stream, monkeypatch, plant, compute, expected):
    right = compute(stream)
    with monkeypatch.context() as planted:
        plant(planted)
        wrong = compute(stream)
    stream.synchronize()

    assert (right == expected).all()
    assert not (wrong == expected).all()


def test_missing_barrier_is_named_where_orders_are_compared(stream, machine, monkeypatch):
    machine.compare_orders = True
    right = steps(stream)
    before = list(machine.faults)
    without_barriers(monkeypatch)

    steps(stream)

    assert (right == 30 * X).all()
    assert before == []
    assert machine.faults[0].startswith("a barrier is missing between tp_scale, tp_")
    machine.faults.clear()


def test_hazard_that_the_reorder_pass_ignores_is_stopped_by_a_barrier(stream, monkeypatch):
    from tensorplug.planning import stages

    monkeypatch.setattr(stages._Changing, "holds", lambda self, tensor: False)

    assert (overwritten(stream) == 2 * X).all()


def test_encoders_without_a_fence_over_the_same_memory_are_noticed(stream, machine, monkeypatch):
    from Metal._encoders import Encoder

    right = twice_imported(stream)
    before = list(machine.faults)
    monkeypatch.setattr(Encoder, "waitForFence_", never)

    twice_imported(stream)

    assert (right == 6 * X).all()
    assert before == []
    assert machine.faults == ["two buffers over the same memory, and no fence between encoders"]
    machine.faults.clear()


@pytest.mark.parametrize("past", [4096, -4096])
def test_write_out_of_bounds_fails_the_command_buffer(stream, monkeypatch, past):
    from tensorplug_metal.pages import View

    real = View.offset
    monkeypatch.setattr(View, "offset", lambda self, at: real(self, at) + past)
    # The host reads the results: a copy by the GPU would be misplaced, too, and refused.
    monkeypatch.setattr("tensorplug_metal.backend.can_move", lambda *_: False)

    with pytest.raises(RunFailed) as error:
        steps(stream)

    assert "outside" in str(error.value.__cause__)


def test_wrong_address_space_is_not_compiled(stream, monkeypatch):
    from tensorplug_metal import programs

    real = programs.metal_source

    def spaceless(*launch, **more):
        return real(*launch, **more).replace("device const uchar*", "const uchar*")

    monkeypatch.setattr(programs, "metal_source", spaceless)

    with pytest.raises(DeviceError, match=r"(?s)kernel scale .* compile: .*no address space"):
        steps(stream)


def test_recording_that_names_no_pipelines_fails_on_drivers_that_lose_them(
    devices, machine, monkeypatch
):
    from tensorplug_metal import facts

    monkeypatch.setattr(facts, "KEEPS_PIPELINES", 7)
    monkeypatch.setattr("tensorplug_metal.plan.MetalPlan.fewest", 1)
    (device,) = devices()
    with device, device.open() as stream:
        x = tp.input("x", (32,), tp.F32)
        y = tp.scale(x, 2.0)
        with tp.Scheduler([stream]).schedule(y) as run:
            first = run.run({x: X})[y]
            second = run.run({x: X})

            with pytest.raises(RunFailed) as error:
                second[y]

    assert (first == 2 * X).all()
    assert "a pipeline that is not set" in str(error.value.__cause__)
