"""Time per node of building, scheduling and re-running a chain of tiny sums."""

import json
import statistics
import time
from collections.abc import Callable

import numpy as np

import tensorplug as tp
from tensorplug.testing.null import NullDevice

NODES = 1000
REPEATS = 7


def chain(backend: tp.Backend, nodes: int) -> tuple[tp.Tensor, tp.Tensor]:
    weight = backend.place("w", np.ones((1, 16), np.float32), usage=tp.WEIGHTS)
    x = y = tp.input("x", (1, 16), tp.F32)
    for _ in range(nodes):
        y = tp.add(y, weight)
    return x, y


def microseconds_per_node(work: Callable[[], object], nodes: int) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return round(statistics.median(times) / nodes * 1e6, 2)


def planning(devices: int, nodes: int) -> dict[str, float]:
    """Fake devices: all time is the scheduler's own."""
    gpus = [NullDevice(f"null:{i}") for i in range(devices - 1)]
    host = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True)
    backends = [d.open() for d in (*gpus, host)]
    _, y = chain(backends[-1], nodes)
    graph = tp.Graph(y)

    def schedule() -> None:
        with tp.Scheduler(backends) as scheduler:
            scheduler.schedule(graph)

    return {
        "build_us": microseconds_per_node(lambda: chain(backends[-1], nodes), nodes),
        "graph_us": microseconds_per_node(lambda: tp.Graph(y), nodes),
        "schedule_us": microseconds_per_node(schedule, nodes),
    }


def rerun(nodes: int) -> dict[str, float]:
    """The cpu backend: a run against the bare NumPy calls that it makes."""
    tp.load_all()
    with tp.open("cpu") as backend, tp.Scheduler([backend]) as scheduler:
        x, y = chain(backend, nodes)
        schedule = scheduler.schedule(y)
        data = np.ones((1, 16), np.float32)
        schedule.run({x: data})
        a, b, out = (np.ones((1, 16), np.float32) for _ in range(3))

        def bare() -> None:
            for _ in range(nodes):
                np.add(a, b, out=out)

        return {
            "run_us": microseconds_per_node(lambda: schedule.run({x: data}), nodes),
            "bare_numpy_us": microseconds_per_node(bare, nodes),
        }


if __name__ == "__main__":
    report = {
        f"{devices} devices, {nodes} nodes": planning(devices, nodes)
        for devices in (1, 2, 4)
        for nodes in (NODES, 10 * NODES)
    }
    print(json.dumps({**report, f"cpu, {NODES} nodes": rerun(NODES)}, indent=1))
