"""A graph of tiny sums by the compiled kernels and by ggml's, in turns in one process, as JSON.

Nanoseconds per node, medians of the rounds; `ratio` is the median of the rounds' ratios, ggml's
time over ours. ggml is found as `ggml_matmul.py` finds it.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import tensorplug as tp

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from ggml_matmul import F32, Peer
from oracle.ggml import sizes

WIDTH = 16
PAUSE = 0.3
"""Seconds until the threads of the other are asleep."""

Run = Callable[[], float]
"""Runs the graph once and returns the seconds that it took."""


@contextmanager
def ours(device: str, nodes: int) -> Iterator[Run]:
    """A chain of sums in one plan, run without the scheduler: as ggml's graph is."""
    with tp.open(device) as backend, tp.Scheduler([backend]) as scheduler:
        weight = backend.place("w", np.ones(WIDTH, np.float32), usage=tp.WEIGHTS)
        x = y = backend.place("x", np.ones(WIDTH, np.float32))
        for _ in range(nodes):
            y = tp.add(y, weight)
        with scheduler.schedule(y) as schedule:

            def run() -> float:
                start = time.perf_counter()
                schedule.run({})
                return time.perf_counter() - start

            yield run
        for leaf in (weight, x):
            leaf.place.buffer.close()


@contextmanager
def theirs(peer: Peer, nodes: int) -> Iterator[Run]:
    """The same chain in a graph of ggml."""
    ggml = peer.ggml
    with ggml.opened(2 * nodes + 8):
        weight, x = (ggml.build("ggml_new_tensor", "iit", F32, 1, sizes((WIDTH,))) for _ in "wx")
        y = x
        for _ in range(nodes):
            y = ggml.build("ggml_add", "tt", y, weight)
        graph = ggml.build("ggml_new_graph_custom", "lb", 2 * nodes + 8, 0)
        ggml("ggml_build_forward_expand", graph, y)
        with ggml.allocated():
            for tensor in (weight, x):
                ggml.write(tensor, np.ones(WIDTH, np.float32).tobytes())

            def run() -> float:
                start = time.perf_counter()
                ggml("ggml_backend_graph_compute", ggml.backend, graph)
                return time.perf_counter() - start

            yield run


def compare(device: str, nodes: int, threads: int, rounds: int) -> dict[str, float]:
    """Nanoseconds per node of both, and the ratio."""
    found: dict[str, list[float]] = {"ours": [], "ggml": []}
    with (
        ours(f"{device}?threads={threads}", nodes) as mine,
        theirs(Peer(threads), nodes) as peers,
    ):
        for _ in range(rounds):
            for name, run in (("ours", mine), ("ggml", peers)):
                time.sleep(PAUSE)
                run()
                found[name].append(min(run() for _ in range(5)))
    ratios = [b / a for a, b in zip(found["ours"], found["ggml"], strict=True)]
    per_node = {k: round(statistics.median(v) / nodes * 1e9, 1) for k, v in found.items()}
    return {"threads": threads, "nodes": nodes, **per_node, "ratio": statistics.median(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--threads", default="1 2", help="several in one string")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    tp.load_all()
    for threads in map(int, given.threads.split()):
        line = compare(given.device, given.nodes, threads, given.rounds)
        print(json.dumps({**line, "ratio": round(line["ratio"], 2)}), flush=True)


if __name__ == "__main__":
    main()
