"""Plans: encoded, in parts, recorded, bound again, stopped; emulated."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Plan
from tensorplug.errors import Aborted
from tensorplug_emulator import missing
from tensorplug_metal.plan import FIRST, portions

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

X = np.arange(32, dtype=np.float32)
FACTORS = (2.0, 3.0, 5.0, 0.5, 7.0, 0.25, 3.0, 2.0, 0.5)
PRODUCT = float(np.prod(FACTORS))


@pytest.fixture
def chain(stream):
    """A plan of launches that follow each other, and where its input and result lie."""
    return Chain(stream, FACTORS)


class Chain:
    """A graph of steps with memory of its own, planned on a stream."""

    def __init__(self, stream, factors):
        self.stream = stream
        self.x = tp.input("x", (32,), tp.F32)
        self.steps = []
        for factor in factors:
            self.steps.append(tp.scale(self.steps[-1] if self.steps else self.x, factor))
        self.buffers = []
        self.plan = stream.plan(self.bound())

    def bound(self):
        """The graph in new memory."""
        self.buffers.append(self.stream.device.buffer_type.alloc((len(self.steps) + 1) * 128))
        buffer = self.buffers[-1]
        places = {t: tp.Place(buffer, 128 * i) for i, t in enumerate([self.x, *self.steps])}
        buffer.fill(0)
        buffer.write(0, X)
        return tp.Part.of(tp.Graph(self.steps[-1]), tp.Bindings(places))

    def run(self, times=1):
        """Run the plan some times, and wait."""
        for _ in range(times):
            self.plan.run()
        self.stream.synchronize()

    def result(self, which=-1):
        """What lies in the memory of the last step."""
        return self.buffers[which].read(len(self.steps) * 128, 128).view(np.float32)


def test_first_run_encodes_and_the_second_records(chain, machine):
    before = machine.dispatches
    chain.run()
    first = machine.executions, machine.dispatches - before
    chain.run(3)

    assert first == (0, len(FACTORS))
    assert machine.executions == 3
    assert chain.plan.recorded
    assert (chain.result() == PRODUCT * X).all()


def test_recorded_plan_sees_inputs_that_changed(chain):
    chain.run(2)
    chain.buffers[0].write(0, 2 * X)

    chain.run()

    assert (chain.result() == 2 * PRODUCT * X).all()


def test_plan_in_other_memory_is_recorded_anew(chain):
    chain.run(2)

    chain.plan.rebind(chain.bound())
    recorded = chain.plan.recorded
    chain.run(3)

    assert not recorded
    assert chain.plan.recorded
    assert (chain.result(0) == PRODUCT * X).all()
    assert (chain.result(1) == PRODUCT * X).all()


def test_few_launches_are_not_worth_a_recording(stream, machine):
    chain = Chain(stream, FACTORS[:2])
    chain.run(3)

    assert machine.executions == 0
    assert (chain.result() == 6 * X).all()


def test_stream_may_be_told_to_record_nothing(device, machine):
    with device.open(indirect=False) as stream:
        chain = Chain(stream, FACTORS)
        chain.run(3)

    assert machine.executions == 0


def test_gpu_without_indirect_commands_goes_on_encoding(chain, machine, monkeypatch):
    call = "newIndirectCommandBufferWithDescriptor_maxCommandCount_options_"
    monkeypatch.setattr(type(chain.stream.device.handle), call, lambda *_: None)
    chain.run(3)

    assert "Metal makes no indirect command buffer here" in chain.plan.refusal
    assert machine.executions == 0
    assert (chain.result() == PRODUCT * X).all()


@pytest.mark.parametrize(("families", "shown"), [({1007}, 1), ({1007, 1008, 1009}, 0)])
def test_drivers_that_lose_pipelines_are_shown_them(devices, machine, families, shown):
    machine.gpus[0].families = frozenset(families)
    machine.gpus[0].generation = 14 + (1009 in families)
    (device,) = devices()
    with device, device.open() as stream:
        chain = Chain(stream, FACTORS)
        chain.run(2)

        assert len(chain.plan._recording._pipelines) == shown
        assert (chain.result() == PRODUCT * X).all()


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_several_command_buffers_keep_their_order(stream, machine, count):
    chain = Chain(stream, [1.0 + (i % 3) for i in range(FIRST + 40)])
    stream.command_buffers, stream.indirect = count, False
    before = machine.commits

    chain.run(2)

    assert machine.commits - before == 2 * (1 + count)
    expected = X.copy()
    for i in range(FIRST + 40):
        expected *= np.float32(1.0 + (i % 3))
    assert (chain.result() == expected).all()


@pytest.mark.parametrize("launches", [0, 1, 63, 64, 65, 700])
def test_portions_are_the_whole_in_order(launches):
    found = portions(list(range(launches)), 3)

    assert [each for part in found for each in part] == list(range(launches))
    assert len(found[0]) == min(launches, max(64, launches // 10))
    assert len(found) <= 4


@pytest.mark.parametrize("first", [True, False], ids=["of the first part", "of the next"])
def test_error_while_encoding_comes_out_and_the_queue_goes_on(stream, monkeypatch, first):
    from tensorplug_metal import backend

    chain = Chain(stream, [2.0] * (FIRST + 8))
    real = backend.encode

    def failing(encoder, launches):
        real(encoder, launches)
        if (len(launches) == FIRST) is first:
            raise tp.DeviceError("metal:0: no more")

    monkeypatch.setattr(backend, "encode", failing)
    with pytest.raises(tp.DeviceError, match="no more"):
        chain.plan.run()
    monkeypatch.setattr(backend, "encode", real)
    chain.run()

    assert (chain.result() == 2.0 ** (FIRST + 8) * X).all()


# --- side by side ------------------------------------------------------------------------------


def branches(count=4):
    """Work that may run side by side, and its sum: in each stage as much as there are branches."""
    x = tp.input("x", (32,), tp.F32)
    ends = [tp.relu(tp.scale(x, float(i + 1))) for i in range(count)]
    total = ends[0]
    for end in ends[1:]:
        total = total + end
    return x, total


@pytest.mark.parametrize("order", ["forward", "reverse", 1, 2])
def test_work_between_barriers_runs_in_any_order(stream, machine, order):
    machine.order = order
    x, total = branches()
    with tp.Scheduler([stream]).schedule(total) as run:
        got = [run.run({x: X})[total] for _ in range(3)]

    assert all((each == 10 * X).all() for each in got)


def test_barriers_stand_between_stages_alone(stream):
    x, total = branches(8)
    with tp.Scheduler([stream]).schedule(total, fuse=False) as run:
        run.run({x: X})
        plan = run_plan(stream)

        # Eight products and eight rectifiers, each two merged launches, then seven sums in a row.
        assert (plan.launches, plan.barriers) == (2 + 2 + 7, 8)


def run_plan(stream):
    """The plan that is open on a stream."""
    (plan,) = (child for child in stream.children if isinstance(child, Plan))
    return plan


def test_stream_may_be_told_to_run_one_after_the_other(device):
    x, total = branches()
    with device.open(concurrent=False) as stream, tp.Scheduler([stream]).schedule(total) as run:
        got = run.run({x: X})[total]
        plan = run_plan(stream)

        assert plan.barriers == plan.launches
    assert (got == 10 * X).all()


# --- stopping ----------------------------------------------------------------------------------


def test_run_is_stopped_between_command_buffers(stream, machine):
    chain = Chain(stream, [2.0] * 200)
    asked = []

    def stop():
        asked.append(machine.dispatches)
        return len(asked) == 3

    stream.abort_callback = stop
    before = machine.dispatches
    with pytest.raises(Aborted, match="metal:0: stopped after 128 launches"):
        chain.plan.run()

    # What was queued first is done before the callback is asked again.
    assert asked[2] - before >= 64


def test_run_that_nobody_stops_is_whole(stream):
    chain = Chain(stream, [1.0] * 130)
    stream.abort_callback = lambda: False
    chain.run(2)

    assert (chain.result() == X).all()
