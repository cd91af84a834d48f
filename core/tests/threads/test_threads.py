"""Several Python threads: what each may have for itself, what they share, what is refused."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Plan
from tensorplug.device.lifetime import Turnstile
from tensorplug.errors import Closed, ConcurrentUse, RunFailed, SchedulerBusy, StaleResult
from tensorplug.graph.tensor import Tensor
from tensorplug_testing.null import NullDevice, null_devices

THREADS = 4
RUNS = 25
X = np.arange(16, dtype=np.float32).reshape(4, 4) - 5
W = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """Let threads take turns a thousand times more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def devices() -> Iterator[list[NullDevice]]:
    """Two devices with memory of their own that work late, and a host device."""
    made = [
        *null_devices(2, family="gpu", asynchronous=True, seed=3),
        NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True),
    ]
    yield made
    for device in made:
        device.close(force=True)


def together(work: Callable[[int], object], count: int = THREADS) -> list[object]:
    """The results of `work` in `count` threads that start together; errors are raised."""
    start = threading.Barrier(count)

    def begin(i: int) -> object:
        start.wait(10)
        return work(i)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def chain(scheduler: tp.Scheduler, weights: list[Tensor]) -> Callable[[np.ndarray], np.ndarray]:
    """A product with each of the weights, planned; called with an input."""
    x = tp.input("x", (4, 4), tp.F32)
    y = x
    for w in weights:
        y = tp.mul_mat(w, y)
    y = tp.relu(y)
    schedule = scheduler.schedule(y)
    return lambda data: schedule.run({x: data})[y]


def expected(data: np.ndarray) -> np.ndarray:
    return np.maximum(data @ W.T @ W.T, 0)


# --- what runs at once -------------------------------------------------------------------------


def test_each_thread_has_a_scheduler_and_streams_of_shared_devices(
    devices: list[NullDevice],
) -> None:
    def work(i: int) -> None:
        streams = [device.open() for device in devices]
        weights = [s.place("w", W, usage=tp.WEIGHTS) for s in streams[:2]]
        with tp.Scheduler(streams) as scheduler:
            run = chain(scheduler, weights)
            for j in range(RUNS):
                np.testing.assert_allclose(run(X + i + j), expected(X + i + j), rtol=1e-5)

    together(work)


def test_threads_on_devices_of_their_own_do_not_meet() -> None:
    def work(i: int) -> None:
        with (
            NullDevice(f"mine:{i}", asynchronous=True) as mine,
            NullDevice(f"host:{i}", host=True) as host,
        ):
            streams = [mine.open(), host.open()]
            weights = [streams[0].place("w", W, usage=tp.WEIGHTS) for _ in range(2)]
            with tp.Scheduler(streams, parallel=True) as scheduler:
                run = chain(scheduler, weights)
                for j in range(RUNS):
                    np.testing.assert_allclose(run(X + j), expected(X + j), rtol=1e-5)

    together(work)


def test_one_graph_and_its_weights_serve_all_threads(devices: list[NullDevice]) -> None:
    owner = devices[0].open()
    w = owner.place("w", W, usage=tp.WEIGHTS)
    x = tp.input("x", (4, 4), tp.F32)
    graph = tp.Graph(tp.relu(tp.mul_mat(w, tp.mul_mat(w, x))))

    def work(i: int) -> None:
        with tp.Scheduler([devices[0].open(), devices[2].open()]) as scheduler:
            for j in range(RUNS):
                with scheduler.schedule(graph) as schedule:
                    result = schedule.run({x: X + i + j})[graph.outputs[0]]
                np.testing.assert_allclose(result, expected(X + i + j), rtol=1e-5)

    together(work)


def test_memory_is_made_and_freed_by_all_threads(null: NullDevice) -> None:
    def work(i: int) -> None:
        for size in range(1, 200):
            with null.buffer_type.alloc(size + i) as buffer:
                buffer.fill(i)
                assert set(buffer.read(0, size)) == {i}

    together(work)

    assert (null.live_buffers, null.used) == (0, 0)


def test_threads_lose_a_shared_device_and_go_on_each_for_itself(devices: list[NullDevice]) -> None:
    lost = threading.Barrier(THREADS, action=devices[0].lose)

    def work(i: int) -> None:
        streams = [device.open() for device in devices]
        weights = [s.place("w", W, usage=tp.WEIGHTS) for s in streams[:2]]
        with tp.Scheduler(streams, on_failure="replan") as scheduler:
            scheduler.add_sources(dict.fromkeys(weights, lambda: W))
            run = chain(scheduler, weights)
            for j in range(RUNS):
                if j == RUNS // 2:
                    lost.wait(10)
                np.testing.assert_allclose(run(X + i + j), expected(X + i + j), rtol=1e-5)
            assert [b.name for b in scheduler.backends] == ["gpu:1", "cpu:0"]

    together(work)


# --- what is refused ---------------------------------------------------------------------------


def test_scheduler_that_threads_share_gives_right_results_or_says_that_it_is_busy(
    devices: list[NullDevice],
) -> None:
    streams = [device.open() for device in devices]
    weights = [s.place("w", W, usage=tp.WEIGHTS) for s in streams[:2]]
    scheduler = tp.Scheduler(streams, on_failure="replan")
    runs = [chain(scheduler, weights) for _ in range(THREADS)]

    def work(i: int) -> int:
        done = 0
        for j in range(RUNS):
            try:
                result = runs[i](X + i + j)
            except (SchedulerBusy, StaleResult):
                continue
            np.testing.assert_allclose(result, expected(X + i + j), rtol=1e-5)
            done += 1
        return done

    done = together(work)

    assert any(done)
    scheduler.close(force=True)


def test_stream_that_two_schedulers_use_at_once_is_refused_to_one(null: NullDevice) -> None:
    inside, leave = threading.Event(), threading.Event()

    def slow(_node: Tensor, out: np.ndarray, x: np.ndarray) -> None:
        inside.set()
        leave.wait(10)
        out[...] = x

    with NullDevice("slow:0", host=True, kernels={"relu": slow}) as device:
        stream, x = device.open(), tp.input("x", (4, 4), tp.F32)
        first, second = (tp.Scheduler([stream]) for _ in range(2))
        one, two = first.schedule(tp.relu(x)), second.schedule(tp.relu(x) + x)
        thread = threading.Thread(target=lambda: one.run({x: X}))
        thread.start()
        inside.wait(10)

        with pytest.raises(ConcurrentUse, match="backend slow:0: entered while another thread"):
            two.run({x: X})

        leave.set()
        thread.join()
        first.close(force=True)
        second.close(force=True)


def test_failure_in_one_thread_is_no_failure_in_another(devices: list[NullDevice]) -> None:
    def work(i: int) -> str:
        device = NullDevice(f"own:{i}", asynchronous=True)
        streams = [device.open(), devices[2].open()]
        weights = [streams[0].place("w", W, usage=tp.WEIGHTS) for _ in range(2)]
        with tp.Scheduler(streams) as scheduler:
            run = chain(scheduler, weights)
            if i == 0:
                device.lose("compute", at=3)
            try:
                for j in range(RUNS):
                    np.testing.assert_allclose(run(X + j), expected(X + j), rtol=1e-5)
            except RunFailed as error:
                return error.state.devices[0]
        return ""

    assert together(work) == ["own:0", "", "", ""]


class Between(Turnstile):
    """Lets another thread do something before it lets the first one in."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__("what is shared")
        self._meanwhile: Callable[[], object] | None = meanwhile

    def __enter__(self) -> None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            elsewhere(meanwhile)
        super().__enter__()


def elsewhere(work: Callable[[], object]) -> None:
    """Do it in another thread, where it may be refused, and wait for that."""

    def attempt() -> None:
        with contextlib.suppress(ConcurrentUse):
            work()

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join(10)


@pytest.fixture
def streams(null: NullDevice, host: NullDevice) -> list[tp.Backend]:
    return [null.open(), host.open()]


def test_run_of_another_thread_before_a_result_is_read_makes_it_stale(
    streams: list[tp.Backend],
) -> None:
    x = tp.input("x", (4, 4), tp.F32)
    y = tp.relu(x)
    with tp.Scheduler(streams) as scheduler:
        schedule = scheduler.schedule(y)
        results = schedule.run({x: X})
        scheduler._runs.turn = Between(lambda: schedule.run({x: X + 1}))

        with pytest.raises(StaleResult):
            results[y]


@pytest.mark.parametrize("what", ["wait", "read"])
def test_run_of_another_thread_while_a_result_is_read_is_refused(
    what: str, null: NullDevice, streams: list[tp.Backend]
) -> None:
    x = tp.input("x", (4, 4), tp.F32)
    y = tp.relu(x)
    with tp.Scheduler(streams) as scheduler:
        schedule = scheduler.schedule(y, pins={y: streams[0]})
        results = schedule.run({x: X})
        null.faults.plan(what, 1, lambda: elsewhere(lambda: schedule.run({x: X + 1})))

        found = results[y]

    np.testing.assert_array_equal(found, np.maximum(X, 0))


@pytest.mark.parametrize("what", ["wait", "read", "compute"])
def test_batch_that_another_thread_waits_for_meanwhile_is_right_or_refused(
    what: str, host: NullDevice
) -> None:
    device = NullDevice("gpu:0", asynchronous=True, events=False)
    streams = [device.open(), host.open()]
    x = tp.input("x", (4, 4), tp.F32)
    y = tp.relu(x)
    found: list[np.ndarray] = []
    with device, tp.Scheduler(streams, parallel=True) as scheduler:
        schedule = scheduler.schedule(y, pins={y: streams[0]})
        flight = schedule.submit({x: X})
        device.faults.plan(what, 1, lambda: elsewhere(lambda: found.append(flight[y])))

        found.append(flight[y])

        assert scheduler._runs.flying == []
    for each in found:
        np.testing.assert_array_equal(each, np.maximum(X, 0))


@pytest.mark.parametrize("call", ["synchronize", "release"])
def test_scheduler_that_another_thread_runs_neither_waits_nor_gives_memory_back(
    call: str, null: NullDevice, streams: list[tp.Backend]
) -> None:
    x = tp.input("x", (4, 4), tp.F32)
    y = tp.relu(x)
    refused: list[str] = []
    with tp.Scheduler(streams) as scheduler:
        schedule = scheduler.schedule(y, pins={y: streams[0]})

        def ask() -> None:
            try:
                getattr(scheduler, call)()
            except SchedulerBusy as error:
                refused.append(str(error))

        null.faults.plan("compute", 1, lambda: elsewhere(ask))
        schedule.run({x: X})

    assert refused == [
        "scheduler: entered while another thread or call runs it; give each thread its own"
    ]


@pytest.mark.parametrize("what", ["scheduler", "schedule"])
def test_what_another_thread_runs_is_closed_after_that_run(
    what: str, null: NullDevice, streams: list[tp.Backend]
) -> None:
    x = tp.input("x", (4, 4), tp.F32)
    y = tp.relu(x)
    scheduler = tp.Scheduler(streams)
    schedule = scheduler.schedule(y, pins={y: streams[0]})
    closing = scheduler if what == "scheduler" else schedule
    thread = threading.Thread(target=partial(closing.close, force=True))
    closed_inside: list[bool] = []

    def meanwhile() -> None:
        thread.start()
        thread.join(0.1)
        closed_inside.append(closing.closed)

    null.faults.plan("compute", 1, meanwhile)
    schedule.run({x: X})
    thread.join()

    assert closed_inside == [False]
    assert schedule.closed
    with pytest.raises(Closed):
        schedule.run({x: X})
    scheduler.close()


def test_run_cannot_close_what_it_runs(null: NullDevice, streams: list[tp.Backend]) -> None:
    x = tp.input("x", (4, 4), tp.F32)
    y = tp.relu(x)
    refused: list[str] = []
    with tp.Scheduler(streams) as scheduler:
        schedule = scheduler.schedule(y, pins={y: streams[0]})

        def close() -> None:
            try:
                scheduler.close(force=True)
            except SchedulerBusy as error:
                refused.append(str(error))

        null.faults.plan("compute", 1, close)

        np.testing.assert_array_equal(schedule.run({x: X})[y], np.maximum(X, 0))

    assert refused == ["scheduler: closed by a call that it runs; close it later"]


def test_schedule_that_another_thread_closes_before_its_turn_does_not_run(
    streams: list[tp.Backend],
) -> None:
    x = tp.input("x", (4, 4), tp.F32)
    with tp.Scheduler(streams) as scheduler:
        schedule = scheduler.schedule(tp.relu(x))
        scheduler._runs.turn = Between(schedule.close)

        with pytest.raises(Closed):
            schedule.run({x: X})

        assert schedule.private_buffers() == []


@pytest.mark.parametrize("call", [lambda plan: plan.run(), lambda plan: plan.rebind(plan.bound)])
def test_plan_that_another_thread_closes_before_its_turn_does_nothing(
    call: Callable[[Plan], None], host: NullDevice
) -> None:
    stream = host.open()
    graph = tp.Graph(tp.relu(stream.place("w", W)))
    place = tp.Place(host.buffer_type.alloc(64), 0)
    plan = stream.plan(tp.Part.of(graph, tp.Bindings({graph.outputs[0]: place})))
    plan._turn = Between(plan.close)

    with pytest.raises(Closed):
        call(plan)

    assert host.computed == []


# --- without the global lock -------------------------------------------------------------------


def free_threaded() -> str | None:
    """A Python without the global lock that has NumPy and pytest, if there is one."""
    named = os.environ.get("TENSORPLUG_FREE_THREADED")
    return named or shutil.which("python3.14t") or shutil.which("python3.13t")


@pytest.mark.slow
@pytest.mark.skipif(
    free_threaded() is None,
    reason="no free-threaded Python; name one in TENSORPLUG_FREE_THREADED",
)
def test_all_of_this_holds_without_the_global_lock() -> None:
    python = free_threaded()
    assert python is not None
    here = Path(__file__)
    paths = os.pathsep.join([str(Path(tp.__file__).parents[1])])

    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-m", "not slow", str(here)],
        env={**os.environ, "PYTHON_GIL": "0", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
