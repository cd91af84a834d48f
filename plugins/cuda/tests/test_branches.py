"""Plans whose graphs have branches; emulated, in orders of which each keeps what was captured."""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

import tensorplug as tp
from tensorplug.device import OptionError, Plan, SupportsConcurrency
from tensorplug_cpu.reference import decode, encode
from tensorplug_cuda import branches, plan
from tensorplug_emulator import missing
from tensorplug_testing.programs import programs

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

X = np.arange(1, 33, dtype=np.float32)
SIZE = 128
"""Bytes of each tensor of a diamond."""


@pytest.fixture
def stream(device):
    """One stream of the device, whose plans have up to three branches."""
    with device.open(streams=3) as stream:
        yield stream


class Diamond:
    """Two branches of two launches each, with one launch before both and one after both."""

    def __init__(self, stream):
        self.stream = stream
        self.x = tp.input("x", (32,), tp.F32)
        start = tp.scale(self.x, 2.0)
        first, second = tp.scale(start, 3.0), tp.sqr(start)
        self.steps = [start, first, second, tp.neg(first), tp.sqrt(second)]
        self.steps.append(tp.add(self.steps[3], self.steps[4]))
        self.slots = dict(zip([self.x, *self.steps], range(7), strict=True))
        self.buffers = []
        self.plan = stream.plan(self.bound())

    def bound(self, elsewhere=None):
        """The graph in new memory: tensors lie in execution order, except those in `elsewhere`."""
        self.buffers.append(self.stream.device.buffer_type.alloc(7 * SIZE))
        slots = {**self.slots, **(elsewhere or {})}
        places = {t: tp.Place(self.buffers[-1], SIZE * at) for t, at in slots.items()}
        return tp.Part.of(tp.Graph(self.steps[-1]), tp.Bindings(places))

    def write(self, factor):
        """What the next run computes with; nothing else is left there."""
        self.buffers[-1].fill(0xFF)
        self.buffers[-1].write(0, np.float32(factor) * X)

    def run(self, times=1):
        """Run on other numbers each time: for each run, whether its result is right."""
        right = []
        for factor in range(1, times + 1):
            self.write(factor)
            self.plan.run()
            self.stream.synchronize()
            right.append(bool((self.result() == -4 * factor * X).all()))
        return right

    def result(self):
        """What lies in the memory of the last step."""
        return self.buffers[-1].read(6 * SIZE, SIZE).view(np.float32)


@pytest.fixture
def diamond(stream):
    """The plan, not run yet."""
    return Diamond(stream)


def order_of(plan):
    """What each node of a captured graph comes after, directly."""
    return [sorted(after) for after in plan._recording.captured.after]


# --- capture -----------------------------------------------------------------------------------


def test_captured_plan_has_the_branches_of_its_graph(diamond, stream, machine):
    right = diamond.run(8)

    assert all(right)
    assert not any(side.is_capturing() for side in stream.sides)
    assert order_of(diamond.plan) == [[], [0], [0], [1], [2], [3, 4]]
    assert (diamond.plan.recorded, diamond.plan.branches, diamond.plan.longest) == (True, 2, 4)
    assert (machine.captures, machine.graph_launches) == (1, 7)


def test_launches_one_by_one_are_on_one_stream(diamond, stream, machine):
    diamond.plan.run()

    assert [side.queue.queued for side in stream.sides] == [0, 0, 0]
    assert stream.stream.queue.queued == 6
    assert machine.captures == 0


def test_graph_starts_after_earlier_work_of_its_stream(diamond, stream):
    diamond.run(2)
    data = memoryview((5 * X).tobytes())
    stream.write_async(diamond.buffers[0], 0, data)

    diamond.plan.run()
    stream.synchronize()

    assert (diamond.result() == -20 * X).all()


def test_stream_of_another_library_may_have_branches(device):
    from cupy.cuda import Stream

    theirs = Stream(non_blocking=True)
    with device.open(stream=theirs.ptr, streams=2) as stream:
        diamond = Diamond(stream)
        right = diamond.run(3)

        assert all(right)
        assert diamond.plan.branches == 2


def test_capture_that_fails_in_a_branch_is_ended_and_nothing_is_lost(diamond, stream, monkeypatch):
    side = type(stream.sides[1])
    real = side.wait_event

    def fails(self, event):
        if self is stream.sides[1]:
            raise RuntimeError("no memory for a node")
        real(self, event)

    monkeypatch.setattr(side, "wait_event", fails)
    right = diamond.run(3)

    assert all(right)
    assert not diamond.plan.recorded
    assert diamond.plan.refusal
    assert not any(each.is_capturing() for each in stream.sides)


# --- one stream, and how many ------------------------------------------------------------------


def test_plain_stream_has_one_chain_and_asks_for_no_order(device):
    with device.open() as stream:
        diamond = Diamond(stream)
        diamond.run(2)

        assert not isinstance(stream, SupportsConcurrency)
        assert order_of(diamond.plan) == [[], [0], [1], [2], [3], [4]]
        assert (diamond.plan.branches, diamond.plan.longest) == (1, 6)


def test_stream_with_others_beside_it_gets_work_in_stages(stream):
    x = tp.input("x", (32,), tp.F32)
    y = tp.add(tp.sqr(tp.neg(x)), tp.sqrt(tp.scale(x, 4.0)))

    with tp.Scheduler([stream], sanitize=True).schedule(y, fuse=False) as run:
        got = [run.run({x: n * X})[y] for n in (1, 2, 3)]
        stages = run.explain().stages

    assert isinstance(stream, SupportsConcurrency)
    assert [len(stage.work) for stage in stages] == [2, 2, 1]
    for n, each in zip((1, 2, 3), got, strict=True):
        np.testing.assert_allclose(each, (n * X) ** 2 + 2 * np.sqrt(n * X), rtol=1e-6)


@pytest.mark.parametrize("streams", [0, 9, "many"])
def test_number_of_streams_that_makes_no_sense_is_refused(device, streams):
    with pytest.raises(OptionError, match="cuda:0: option streams="):
        device.open(streams=streams)


# --- other memory ------------------------------------------------------------------------------


def test_graph_is_captured_anew_where_other_memory_asks_for_another_order(diamond, machine):
    diamond.run(2)

    # The second branch ends over what the first one reads.
    diamond.plan.rebind(diamond.bound({diamond.steps[4]: 2}))
    ready = diamond.plan.recorded
    right = diamond.run(4)

    assert not ready
    assert all(right)
    assert machine.captures == 2
    assert order_of(diamond.plan) == [[], [0], [0], [1], [2, 3], [4]]


# --- timing and closing ------------------------------------------------------------------------


def test_traced_plan_is_timed_launch_by_launch(diamond, machine):
    diamond.run(2)
    diamond.stream.profile = True
    right = diamond.run(1)

    spans = diamond.stream.take_spans()

    assert all(right)
    assert len([span for span in spans if span.name not in ("write", "fill")]) == 6
    assert machine.graph_launches == 1


def test_closing_a_plan_waits_for_all_branches(diamond):
    diamond.run(2)
    diamond.write(3)
    diamond.plan.run()

    diamond.plan.close()

    assert (diamond.result() == -12 * X).all()


def test_closing_a_stream_gives_its_side_streams_back(device, machine):
    with device.open(streams=3) as stream:
        Diamond(stream).run(2)
        sides = {int(side.ptr) for side in stream.sides}
        there = sides & set(machine.queues)

    assert there == sides
    assert not sides & set(machine.queues)


# --- what must not run side by side ------------------------------------------------------------


def over_scratch(stream, at):
    """Two products that round their columns to scratch memory, which lies behind their results: the
    streams in use, and for each run whether both are right. The second result lies `at` a byte."""
    random = np.random.default_rng(5)
    columns = random.standard_normal((2, 256)).astype(np.float32)
    stored = {kind: encode(kind, random.standard_normal((8, 256))) for kind in (tp.Q8_0, tp.Q4_0)}
    x = tp.input("x", columns.shape, tp.F32)
    y = [tp.mul_mat(stream.place(t.name, each, dtype=t), x) for t, each in stored.items()]
    wanted = [columns @ decode(t, each).reshape(8, 256).T for t, each in stored.items()]
    with stream.device.buffer_type.alloc(16384) as memory:
        places = {t: tp.Place(memory, place) for t, place in zip(y, (0, at), strict=True)}
        places[x] = tp.Place(memory, 8192)
        memory.write(8192, columns)
        run = stream.plan(tp.Part.of(tp.Graph(y), tp.Bindings(places)))
        right = []
        for _ in range(6):
            memory.fill(0xFF, 0, 8192)
            run.run()
            stream.synchronize()
            found = [memory.read(place, 64).view(np.float32).reshape(2, 8) for place in (0, at)]
            right.append(np.linalg.norm(np.subtract(found, wanted)) < 0.02 * np.linalg.norm(wanted))
        return run.branches, right


@pytest.mark.parametrize(("at", "streams"), [(4096, 2), (128, 1)], ids=["apart", "shared"])
def test_launches_that_share_scratch_memory_follow_each_other(stream, at, streams):
    assert over_scratch(stream, at) == (streams, [True] * 6)


def after_merged(stream):
    """For each run, whether what comes after each of two merged launches is right."""
    x = tp.input("x", (32,), tp.F32)
    y = [tp.sqr(tp.scale(x, 2.0)), tp.neg(tp.scale(x, 3.0))]
    right = []
    with tp.Scheduler([stream]).schedule(y, fuse=False) as run:
        for n in range(1, 7):
            found = run.run({x: n * X})
            right.append(bool((found[y[0]] == (2 * n * X) ** 2).all()))
            right[-1] &= bool((found[y[1]] == -3 * n * X).all())
    return right


def test_launches_come_after_merged_ones_whichever_part_they_need(stream):
    assert after_merged(stream) == [True] * 6


# --- faults ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2, 5], ids=["at the fork", "at the join"])
def test_dropped_edge_makes_a_wrong_result(stream, monkeypatch, number):
    real = branches.spread

    def without(launches, streams):
        found = real(launches, streams)
        turns = list(found.turns)
        turns[number] = turns[number]._replace(waits=())
        return found._replace(turns=tuple(turns))

    monkeypatch.setattr(plan, "spread", without)

    right = Diamond(stream).run(6)

    assert right[0]
    assert not all(right)


def own(placed, touches):
    """All but scratch memory."""
    regions = [r for part in placed for r in part.launch.regions.values() if r.nbytes]
    return [t for t, region in zip(touches, regions, strict=True) if region.tensor is not None]


FORGOTTEN = {
    "reads": (lambda _, touches: [t for t in touches if t[1]], lambda s: Diamond(s).run(6)),
    "writes": (lambda _, touches: [t for t in touches if not t[1]], lambda s: Diamond(s).run(6)),
    "scratch memory": (own, lambda s: over_scratch(s, 128)[1]),
    "other parts": (lambda placed, touches: touches[: len(touches) // len(placed)], after_merged),
}


@pytest.mark.parametrize(("forget", "compute"), FORGOTTEN.values(), ids=FORGOTTEN)
def test_memory_that_is_forgotten_makes_a_wrong_result(stream, monkeypatch, forget, compute):
    real = plan.touched
    monkeypatch.setattr(plan, "touched", lambda parts: forget(parts, real(parts)))

    right = compute(stream)

    assert right[0]
    assert not all(right)


# --- random graphs -----------------------------------------------------------------------------


def results(program, device, streams):
    """What a program gives in four runs, and the branches of its plans."""
    tensors = program.build()
    outputs = [tensors[i] for i in program.outputs]
    graph = tp.Graph(outputs, effects=[tensors[i] for i in program.writes])
    with (
        device.open(streams=streams) as stream,
        tp.Scheduler([stream], sanitize=True) as scheduler,
        scheduler.schedule(graph) as run,
    ):
        found = []
        for number in range(4):
            values = run.run(program.stored(graph.leafs, again=number))
            found += [np.array(values[t]) for t in outputs]
        plans = [child for child in stream.children if isinstance(child, Plan)]
        return found, max((p.branches for p in plans if p.recorded), default=1)


def compare(device, examples):
    """The most branches of random graphs, all of which give what one stream gives."""
    most = []

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @seed(1)
    @given(programs())
    def agree(program):
        plain, _ = results(program, device, 1)
        found, streams = results(program, device, 3)
        most.append(streams)
        for one, other in zip(plain, found, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=str(program))

    agree()
    return max(most)


@pytest.mark.long
def test_random_graphs_give_what_one_stream_gives(device):
    assert compare(device, examples=15) > 1


@pytest.mark.long
def test_many_random_graphs_give_what_one_stream_gives(device):
    assert compare(device, examples=200) == 3
