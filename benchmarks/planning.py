"""What planning costs per node, in tensorplug and in ggml: building, scheduling, running again.

A chain of tiny sums; with several devices every 100 nodes are pinned to the next one, each with
memory of its own, so that there are copies. ggml is found as `ggml_matmul.py` finds it. Its fake
devices are `ggml_fake.c`, compiled by `cc` with ggml's headers of the same version, which
`--ggml-source FOLDER` names (`include`, `src`); without it only tensorplug is measured.
Microseconds per node, medians of rounds in turns; `--out FILE` writes them.
"""

import argparse
import ctypes
import gc
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import tensorplug as tp
from tensorplug.device import Plan
from tensorplug_testing.null import NullDevice

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from oracle.ggml import SIGNATURES, Ggml, Pointer, library_folder, sizes

DEVICES = (1, 2, 4)
NODES = (1_000, 10_000)
EACH = 100
"""Nodes in a row on one device."""
WIDTH = 16
ROUNDS = 7
SCHEDULER = {
    "ggml_backend_sched_new": "tttizbb",
    "ggml_backend_sched_free": "-t",
    "ggml_backend_sched_reset": "-t",
    "ggml_backend_sched_set_tensor_backend": "-ttt",
    "ggml_backend_sched_alloc_graph": "btt",
    "ggml_backend_sched_get_n_splits": "it",
    "ggml_set_input": "-t",
    "ggml_set_output": "-t",
}
"""Functions of ggml that the oracle does not declare, with their types as it writes them."""

Timed = Callable[[], float]
"""Does the work once and returns the seconds that it took."""


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# --- ours --------------------------------------------------------------------------------------


def chain(x: tp.Tensor, weight: tp.Tensor, nodes: int) -> list[tp.Tensor]:
    made = [x]
    for _ in range(nodes):
        made.append(tp.add(made[-1], weight))
    return made[1:]


@contextmanager
def ours(devices: int, nodes: int) -> Iterator[dict[str, Timed]]:
    """Fake devices: all time is the library's own. They take every fusion that there is."""
    host = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True)
    all_devices = [*(NullDevice(f"null:{i}") for i in range(devices - 1)), host]
    streams = [device.open() for device in all_devices]
    weight = streams[-1].place("w", np.ones((1, WIDTH), np.float32), usage=tp.WEIGHTS)
    x = tp.input("x", (1, WIDTH), tp.F32)
    made = chain(x, weight, nodes)
    graph = tp.Graph(made[-1])
    pins = {node: streams[i // EACH % devices] for i, node in enumerate(made)}

    def schedule(*, fuse: bool) -> float:
        with tp.Scheduler(streams) as scheduler:
            return seconds(lambda: scheduler.schedule(graph, pins=pins, fuse=fuse))

    yield {
        "build": lambda: seconds(lambda: tp.Graph(chain(x, weight, nodes)[-1])),
        "schedule": lambda: schedule(fuse=False),
        "schedule_and_fuse": lambda: schedule(fuse=True),
    }
    for device in all_devices:
        device.close(force=True)


# --- ggml's ------------------------------------------------------------------------------------


class Peer:
    """A ggml, and fake devices for it; its scheduler wants a processor's backend to be the last."""

    def __init__(self, source: Path) -> None:
        folder = library_folder()
        self.ggml = Ggml(folder)
        SIGNATURES.update(SCHEDULER)
        includes = [f"-I{source / name}" for name in ("include", "src")]
        with tempfile.TemporaryDirectory() as made:
            path = Path(made) / "fake.so"
            text = str(Path(__file__).with_name("ggml_fake.c"))
            links = [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lggml-base"]
            command = ["cc", "-O2", "-shared", "-fPIC", *includes, text, *links, "-o", str(path)]
            subprocess.run(command, check=True)
            self._fakes = ctypes.CDLL(str(path))
        self._fakes.fake_stream.restype = Pointer

    def streams(self, devices: int) -> list[int]:
        """`devices` streams, the last of which is of the processor."""
        return [*(self._fakes.fake_stream(i) for i in range(devices - 1)), self.ggml.backend]


@contextmanager
def theirs(peer: Peer, devices: int, nodes: int) -> Iterator[Timed]:
    """Splitting and allocating; the graph is new each time, as a scheduler may rewrite it."""
    ggml, backends = peer.ggml, peer.streams(devices)
    array = (Pointer * devices)(*backends)
    room = 4 * nodes + 64
    scheduler = ggml("ggml_backend_sched_new", array, None, devices, room, 0, 0)

    def work() -> float:
        with ggml.opened(2 * room):
            x, y = (
                ggml.build("ggml_new_tensor", "iit", tp.F32.id, 1, sizes((WIDTH,))) for _ in "xy"
            )
            for leaf in (x, y):
                ggml("ggml_set_input", leaf)
            made = [x]
            for _ in range(nodes):
                made.append(ggml.build("ggml_add", "tt", made[-1], y))
            ggml("ggml_set_output", made[-1])
            graph = ggml.build("ggml_new_graph_custom", "lb", room, 0)
            ggml("ggml_build_forward_expand", graph, made[-1])
            ggml("ggml_backend_sched_reset", scheduler)
            for i, node in enumerate(made[1:]):
                home = backends[i // EACH % devices]
                ggml("ggml_backend_sched_set_tensor_backend", scheduler, node, home)
            allocate = ggml.typed("ggml_backend_sched_alloc_graph", "btt")
            took = seconds(lambda: allocate(scheduler, graph))
            wanted = -(-nodes // EACH) if devices > 1 else 1
            splits = ggml("ggml_backend_sched_get_n_splits", scheduler)
            assert splits == wanted, f"ggml made {splits} splits, not {wanted}"
            ggml("ggml_backend_sched_reset", scheduler)
            return took

    yield work
    ggml("ggml_backend_sched_free", scheduler)


# --- what is measured --------------------------------------------------------------------------


def planning(peer: Peer | None, devices: int, nodes: int) -> dict[str, float]:
    """Medians of the rounds in microseconds per node; `ratio` is ours over ggml's."""
    with ours(devices, nodes) as works:
        if peer is None:
            return medians(works, nodes)
        with theirs(peer, devices, nodes) as split:
            found = medians({**works, "ggml": split}, nodes)
            return {**found, "ratio": round(found["schedule"] / found["ggml"], 1)}


def medians(works: dict[str, Timed], nodes: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in works}
    gc.collect()
    for _ in range(ROUNDS):
        for name, work in works.items():
            times[name].append(work())
    return {name: round(statistics.median(t) / nodes * 1e6, 3) for name, t in times.items()}


class Idle(Plan):
    """A plan that does nothing, so that all time of a run is the scheduler's."""

    def _run(self) -> None:
        pass

    def _rebind(self) -> None:
        pass


def rerun_alone(nodes: int) -> float:
    """Microseconds of a whole run of a schedule, without the work of its nodes."""
    with NullDevice(host=True) as device, device.open() as stream:
        stream._plan = lambda bound: Idle(stream, bound)
        x, weight = (stream.place(name, np.ones(WIDTH, np.float32)) for name in "xw")
        with tp.Scheduler([stream]) as scheduler:
            plan = scheduler.schedule(chain(x, weight, nodes)[-1])
            times = [seconds(lambda: plan.run({})) for _ in range(100)]
    return round(statistics.median(times) * 1e6, 1)


def rerun_on_cpu(nodes: int) -> dict[str, float]:
    """The cpu backend: a run against the bare NumPy calls that it makes."""
    tp.load_all()
    with tp.open("cpu") as backend, tp.Scheduler([backend]) as scheduler:
        weight = backend.place("w", np.ones((1, WIDTH), np.float32), usage=tp.WEIGHTS)
        x = tp.input("x", (1, WIDTH), tp.F32)
        schedule = scheduler.schedule(chain(x, weight, nodes)[-1])
        data = np.ones((1, WIDTH), np.float32)
        a, b, out = (np.ones((1, WIDTH), np.float32) for _ in range(3))

        def bare() -> None:
            for _ in range(nodes):
                np.add(a, b, out=out)

        works = {
            "run": lambda: seconds(lambda: schedule.run({x: data})),
            "bare_numpy": lambda: seconds(bare),
        }
        schedule.run({x: data})
        return medians(works, nodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="where to write the report")
    parser.add_argument("--ggml-source", type=Path, help="the folder of ggml's headers")
    given = parser.parse_args()
    peer = Peer(given.ggml_source) if given.ggml_source else None
    report = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "ggml": peer.ggml.version if peer else "none",
        "per_node_us": {
            f"{devices} devices, {nodes} nodes": planning(peer, devices, nodes)
            for devices in DEVICES
            for nodes in NODES
        },
        "run_again_us": {f"{nodes} nodes": rerun_alone(nodes) for nodes in NODES},
        f"run_on_cpu_per_node_us, {NODES[0]} nodes": rerun_on_cpu(NODES[0]),
    }
    text = json.dumps(report, indent=1)
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
