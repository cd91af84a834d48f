"""What the sanitizer reports, of streams and of schedulers, and what it leaves in peace."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Backend, moving, order_after
from tensorplug.device.marks import Mark
from tensorplug.device.moving import queue_copy, queue_read, queue_write
from tensorplug.errors import HazardError
from tensorplug.graph.tensor import Array, Place
from tensorplug.inspect.sanitizer import Sanitizer
from tensorplug.planning import planned, split
from tensorplug.planning.memory import plan_memory
from tensorplug.planning.program import Wait
from tensorplug.running import fleet, results, run, schedule
from tensorplug.running.runs import Runs
from tensorplug_testing.anykernel import ALL_KERNELS
from tensorplug_testing.null import NullDevice
from tensorplug_testing.timeline import Timeline

X = np.arange(16, dtype=np.float32).reshape(4, 4)


# --- streams under the sanitizer ---------------------------------------------------------------


class Pair:
    """Two streams of one late device that are watched, and memory."""

    def __init__(self, device: NullDevice) -> None:
        self.a: Backend = device.open()
        self.b: Backend = device.open()
        self.memory = Place(device.buffer_type.alloc(64), 0)
        self.other = Place(device.buffer_type.alloc(64), 0)
        self.sanitizer = Sanitizer(self.a, self.b)
        self.data = bytearray(64)

    @property
    def view(self) -> memoryview:
        return memoryview(self.data)


@pytest.fixture
def pair(late: NullDevice) -> Pair:
    return Pair(late)


def test_streams_that_write_the_same_bytes_unordered_are_reported(pair: Pair) -> None:
    queue_write(pair.a, pair.memory, pair.view)

    with pytest.raises(HazardError) as report:
        queue_write(pair.b, pair.memory, memoryview(bytes(64)))

    assert "late:0 stream 2: a copy writes memory, bytes 0 to 64 of <NullBuffer" in str(
        report.value
    )
    assert "while on late:0 a copy writes memory, bytes 0 to 64" in str(report.value)
    assert "order_after(late:0, late:0 stream 2) is missing" in str(report.value)


@pytest.mark.parametrize(
    "order",
    [
        order_after,
        lambda a, _b: a.synchronize(),
    ],
    ids=["order_after", "synchronize"],
)
def test_streams_in_order_are_not_reported(
    pair: Pair, order: Callable[[Backend, Backend], None]
) -> None:
    queue_write(pair.a, pair.memory, pair.view)
    order(pair.a, pair.b)

    queue_write(pair.b, pair.memory, memoryview(bytes(64)))


def test_order_the_wrong_way_round_is_reported(pair: Pair) -> None:
    queue_write(pair.a, pair.memory, pair.view)
    order_after(pair.b, pair.a)

    with pytest.raises(HazardError):
        queue_write(pair.b, pair.memory, memoryview(bytes(64)))


def test_mark_orders_what_was_queued_before_it(pair: Pair) -> None:
    queue_write(pair.a, pair.memory, pair.view)
    mark = Mark(pair.a)
    queue_write(pair.a, pair.other, pair.view)

    mark.order(pair.b)

    queue_write(pair.b, pair.memory, memoryview(bytes(64)))
    with pytest.raises(HazardError, match="while on late:0 a copy writes"):
        queue_write(pair.b, pair.other, memoryview(bytes(64)))


def test_mark_that_the_host_waits_for_orders_all_that_it_queues(pair: Pair) -> None:
    queue_write(pair.a, pair.memory, pair.view)
    mark = Mark(pair.a)
    queue_write(pair.a, pair.other, pair.view)

    mark.synchronize()

    assert pair.sanitizer.pending == 2  # what the second copy reads and writes
    queue_write(pair.b, pair.memory, memoryview(bytes(64)))


def test_every_sanitizer_of_a_stream_hears_of_a_mark(pair: Pair) -> None:
    other = Sanitizer(pair.a, pair.b)
    queue_write(pair.a, pair.memory, pair.view)

    Mark(pair.a).order(pair.b)

    queue_write(pair.b, pair.memory, memoryview(bytes(64)))
    other.close()


def test_copy_comes_after_the_work_of_its_source(pair: Pair) -> None:
    queue_write(pair.a, pair.memory, pair.view)

    queue_copy(pair.a, pair.b, pair.memory, pair.other, 64)


def test_source_that_is_overwritten_while_it_is_copied_is_reported(pair: Pair) -> None:
    queue_copy(pair.a, pair.b, pair.memory, pair.other, 64)

    with pytest.raises(HazardError, match="while on late:0 stream 2 a copy reads"):
        queue_write(pair.a, pair.memory, pair.view)


def test_host_memory_that_two_streams_fill_is_reported(pair: Pair) -> None:
    queue_read(pair.a, pair.memory, pair.view)

    with pytest.raises(HazardError, match=r"bytes \d+ to \d+ of host memory"):
        queue_read(pair.b, pair.other, pair.view)


def test_sanitizer_that_is_closed_hears_nothing(pair: Pair) -> None:
    queue_write(pair.a, pair.memory, pair.view)
    pair.sanitizer.close()

    queue_write(pair.b, pair.memory, memoryview(bytes(64)))

    assert pair.a.watches == ()


def test_nothing_is_kept_of_work_that_was_waited_for(pair: Pair) -> None:
    queue_write(pair.a, pair.memory, pair.view)
    pair.a.synchronize()

    assert pair.sanitizer.pending == 0


# --- schedulers under the sanitizer ------------------------------------------------------------


class Rig:
    """A device with memory of its own, weights and state in it, and a host device, both late."""

    def __init__(self, **gpu: bool) -> None:
        timeline = Timeline(seed=1)
        self.gpu = NullDevice(
            "null:0", asynchronous=True, timeline=timeline, kernels=ALL_KERNELS, fusions=(), **gpu
        )
        self.cpu = NullDevice(
            "null:9",
            device_type=tp.DeviceType.CPU,
            host=True,
            asynchronous=True,
            timeline=timeline,
            kernels=ALL_KERNELS,
            fusions=(),
        )
        self.fast, self.slow = self.gpu.open(), self.cpu.open()
        self.w = self.fast.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
        self.state = self.fast.place("state", X)
        self.x = tp.input("x", (4, 4), tp.F32)

    def scheduler(self, *, parallel: bool = True) -> tp.Scheduler:
        return tp.Scheduler([self.fast, self.slow], parallel=parallel, sanitize=True)

    def close(self) -> None:
        self.gpu.close(force=True)
        self.cpu.close(force=True)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def pipeline(rig: Rig) -> None:
    """Batches in flight, each copied from one device to the other."""
    y = tp.mul_mat(rig.w, rig.x)
    z = tp.scale(y, 2.0)
    with rig.scheduler() as planner:
        plan = planner.schedule(z, pins={z: rig.slow})
        flying = [plan.submit({rig.x: X + i}) for i in range(6)]
        assert [float(f[z][0, 1]) for f in flying] == [2.0 * (1 + i) for i in range(6)]


def generator(rig: Rig) -> None:
    """Batches in flight of which the first device computes the beginning from its own memory."""
    z = tp.relu(rig.state) + rig.x
    with rig.scheduler() as planner:
        plan = planner.schedule(z, pins={z: rig.slow, z.sources[0]: rig.fast})
        flying = [plan.submit({rig.x: X + i}) for i in range(6)]
        assert [float(f[z][0, 1]) for f in flying] == [2.0 + i for i in range(6)]


def runs(rig: Rig) -> None:
    """Several runs without a wait between them."""
    z = tp.scale(tp.mul_mat(rig.w, rig.x), 2.0)
    with rig.scheduler(parallel=False) as planner:
        plan = planner.schedule(z, pins={z: rig.slow})
        plan.run({rig.x: X})
        assert float(plan.run({rig.x: X + 1})[z][0, 1]) == 4.0


def overwritten_state(rig: Rig) -> None:
    """State that one device copies is then written by its own."""
    old = tp.scale(rig.state, 2.0)
    write = tp.cpy(tp.relu(rig.w), rig.state)
    with rig.scheduler(parallel=False) as planner:
        plan = planner.schedule(old, effects=[write], pins={old: rig.slow})
        assert float(plan.run()[old][0, 1]) == 2.0


def reused_memory(rig: Rig) -> None:
    """A value that another device copies while its own device computes on."""
    a = tp.mul_mat(rig.w, rig.x)
    b = tp.scale(a, 2.0)
    c = tp.mul_mat(rig.w, tp.mul_mat(rig.w, a))
    with rig.scheduler(parallel=False) as planner:
        plan = planner.schedule([b, c], pins={b: rig.slow})
        assert float(plan.run({rig.x: X})[b][0, 1]) == 2.0


Program = Callable[[Rig], None]
PROGRAMS: list[Program] = [pipeline, generator, runs, overwritten_state, reused_memory]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("lacks", ["events", "async_transfer", "async_copy", "nothing"])
def test_scheduler_without_mistakes_is_not_reported(program: Program, lacks: str) -> None:
    rig = Rig(**({} if lacks == "nothing" else {lacks: False}))
    program(rig)
    rig.close()


@pytest.mark.parametrize("program", PROGRAMS)
def test_memory_that_both_devices_see_is_not_overwritten_while_one_reads(program: Program) -> None:
    rig = Rig(host=True)
    program(rig)
    rig.close()


@pytest.mark.parametrize("parallel", [False, True])
def test_streams_that_share_memory_take_turns_in_it(rig: Rig, *, parallel: bool) -> None:
    other = rig.gpu.open()
    a = tp.mul_mat(rig.w, rig.state)
    b = tp.mul_mat(rig.w, a)
    c = tp.mul_mat(rig.w, rig.state)  # where a was, which the first stream still reads
    d = b + c + rig.x
    pins = {a: rig.fast, b: rig.fast, c: other, d.sources[0]: rig.fast, d: rig.slow}
    options = {"parallel": parallel, "sanitize": True}
    with tp.Scheduler([rig.fast, other, rig.slow], **options) as planner:
        plan = planner.schedule(d, pins=pins)
        flying = [plan.submit({rig.x: X + i}) for i in range(6)]

        assert float(flying[-1][d][0, 1]) == 2.0 + 6.0


def test_schedules_on_streams_that_share_memory_take_turns_in_it(rig: Rig) -> None:
    streams = (rig.fast, rig.gpu.open())
    states = [rig.fast.place(f"state {i}", np.zeros((4, 4), np.float32)) for i in range(2)]
    y = tp.scale(rig.x, 2.0)
    with tp.Scheduler([*streams, rig.slow], parallel=True, sanitize=True) as planner:
        plans = []
        for stream, state in zip(streams, states, strict=True):
            inner = tp.mul_mat(rig.w, rig.x)
            write = tp.cpy(tp.mul_mat(rig.w, inner), state)
            pins = {y: rig.slow, inner: stream, write.sources[0]: stream, write: stream}
            plans.append(planner.schedule(y, effects=[write], pins=pins))
        for i in range(3):
            for plan in plans:
                plan.submit({rig.x: X + i})
        planner.synchronize()

        assert [float(tp.transfer.read(state)[0, 0]) for state in states] == [2.0, 2.0]


def test_batch_that_follows_a_run_waits_for_it(rig: Rig) -> None:
    z = tp.relu(rig.state) + rig.x
    with rig.scheduler() as planner:
        plan = planner.schedule(z, pins={z: rig.slow, z.sources[0]: rig.fast})
        plan.run({rig.x: X})

        assert float(plan.submit({rig.x: X + 1})[z][0, 1]) == 3.0


# --- planted mistakes --------------------------------------------------------------------------


def nothing(*_: object) -> None:
    """What is left out."""


def skip_order_after(patch: pytest.MonkeyPatch, rig: Rig) -> None:
    patch.setattr(run, "order_after", nothing)
    patch.setattr(Mark, "order", nothing)


def mark_before_the_copies(patch: pytest.MonkeyPatch, rig: Rig) -> None:
    early: dict[Backend, Mark] = {}
    enter = fleet.Fleet.enter

    def careless(*args: Any) -> None:
        enter(*args)
        early.update({stream: Mark(stream) for stream in (rig.fast, rig.slow)})

    patch.setattr(fleet.Fleet, "enter", careless)
    patch.setattr(fleet, "Mark", lambda stream: early.get(stream) or Mark(stream))


def ignore_split_after(patch: pytest.MonkeyPatch, rig: Rig) -> None:
    def careless(*args: Any) -> tuple[split.Split, ...]:
        return tuple(replace(s, after=frozenset()) for s in split.split(*args))

    patch.setattr(planned, "split", careless)


def forget_readers(patch: pytest.MonkeyPatch, rig: Rig) -> None:
    class Forgetful(dict[int, dict[Backend, Mark]]):
        def setdefault(self, _key: int, default: Any = None) -> dict[Backend, Mark]:
            return dict(default)

    made = tp.Scheduler.__init__

    def init(self: tp.Scheduler, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        self._runs.fleet.readers = Forgetful()

    patch.setattr(tp.Scheduler, "__init__", init)


def copy_at_once(patch: pytest.MonkeyPatch, rig: Rig) -> None:
    """Let copies be made by the host, as between devices that can queue none."""
    patch.setattr(type(rig.slow), "copy_async", lambda *_: False)
    patch.setattr(moving, "queues_transfers", lambda _stream: False)


def copy_without_waiting_for_the_source(patch: pytest.MonkeyPatch, rig: Rig) -> None:
    copy_at_once(patch, rig)
    patch.setattr(rig.fast, "synchronize", nothing)


def copy_without_waiting_for_the_target(patch: pytest.MonkeyPatch, rig: Rig) -> None:
    copy_at_once(patch, rig)
    patch.setattr(rig.slow, "synchronize", nothing)


def copy_through_the_host_without_waiting(patch: pytest.MonkeyPatch, rig: Rig) -> None:
    patch.setattr(type(rig.slow), "copy_async", lambda *_: False)
    patch.setattr(moving, "order_after", nothing)


def share_host_memory_among_batches(patch: pytest.MonkeyPatch, rig: Rig) -> None:
    shared: dict[int, Array] = {}
    patch.setattr(type(rig.slow), "copy_async", lambda *_: False)
    patch.setattr(run, "_staging", lambda *a: shared.setdefault(a[-1], np.empty(a[-1], np.uint8)))


def take_a_batch_without_waiting(patch: pytest.MonkeyPatch, rig: Rig) -> None:
    patch.setattr(results.InFlight, "reach", nothing)


def mark_one_stream_only(patch: pytest.MonkeyPatch, rig: Rig) -> None:
    patch.setattr(run, "Mark", lambda _stream: Mark(rig.fast))


def run_without_waiting(patch: pytest.MonkeyPatch, rig: Rig) -> None:
    patch.setattr(Runs, "wait", nothing)


def reuse_what_is_copied(patch: pytest.MonkeyPatch, rig: Rig) -> None:
    def careless(*args: Any, keep: Any, **options: Any) -> Any:
        return plan_memory(*args, keep=[t for t in keep if t.op != "mul_mat"], **options)

    patch.setattr(planned, "plan_memory", careless)


def drop_waits(patch: pytest.MonkeyPatch, rig: Rig) -> None:
    made = schedule.flight_program

    def careless(*args: Any) -> Any:
        return tuple(s for s in made(*args) if not isinstance(s, Wait))

    patch.setattr(schedule, "flight_program", careless)


Mistake = Callable[[pytest.MonkeyPatch, Rig], None]


@pytest.mark.parametrize(
    ("mistake", "program", "report"),
    [
        (skip_order_after, generator, r"order_after\(null:9, null:0\) is missing"),
        (forget_readers, generator, r"order_after\(null:9, null:0\) is missing"),
        (drop_waits, generator, r"order_after\(null:9, null:0\) is missing"),
        (mark_before_the_copies, generator, r"order_after\(null:9, null:0\) is missing"),
        (take_a_batch_without_waiting, pipeline, "the host: an upload writes <Tensor 'x'"),
        (mark_one_stream_only, pipeline, "null:9"),
        (copy_without_waiting_for_the_source, runs, "while on null:0 mul_mat writes"),
        (
            copy_without_waiting_for_the_target,
            runs,
            "the host: a copy writes .* null:9 scale reads",
        ),
        (
            copy_through_the_host_without_waiting,
            pipeline,
            "null:9: a copy reads .* host memory, while on null:0 a copy writes",
        ),
        (
            share_host_memory_among_batches,
            generator,
            "null:0: a copy writes .* host memory, while on null:9 a copy reads",
        ),
        (run_without_waiting, runs, r"null:0.synchronize\(\) is missing"),
        (skip_order_after, overwritten_state, "null:0: cpy writes"),
        (ignore_split_after, overwritten_state, "null:0: cpy writes"),
        (reuse_what_is_copied, reused_memory, "null:0: mul_mat writes"),
    ],
)
def test_planted_mistake_is_reported(
    monkeypatch: pytest.MonkeyPatch, rig: Rig, mistake: Mistake, program: Program, report: str
) -> None:
    mistake(monkeypatch, rig)

    with pytest.raises(HazardError, match=report):
        program(rig)


# --- switching it on ---------------------------------------------------------------------------


def test_sanitizer_is_off_by_default(rig: Rig) -> None:
    with tp.Scheduler([rig.fast, rig.slow]) as planner:
        assert planner._runs.sanitizer is None
        assert rig.fast.watches == ()


def test_environment_switches_it_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORPLUG_SANITIZE", "1")

    with tp.Scheduler([rig.fast, rig.slow]) as planner:
        assert planner._runs.sanitizer is not None
    with tp.Scheduler([rig.fast, rig.slow], sanitize=False) as planner:
        assert planner._runs.sanitizer is None


def test_closed_scheduler_watches_no_stream(rig: Rig) -> None:
    rig.scheduler().close()

    assert rig.fast.watches == rig.slow.watches == ()


def test_schedulers_that_share_streams_hear_each_other(rig: Rig) -> None:
    with rig.scheduler(), rig.scheduler():
        pipeline(rig)
        runs(rig)
