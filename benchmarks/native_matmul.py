"""Products by the compiled kernels and by ggml's, by type of weight, in turns in one process.

With few rows of x a walk over matrices that together exceed the caches, for one row as GB of stored
weights per second and as a share of what the threads read in the same run; with many rows one
matrix. All but one row: GFLOP per second. A figure is the median of the rounds, a ratio that of the
rounds' ratios: `ratio` compares with ggml's plain kernels and `repacked` with the fastest of those
for repacked weights, where ggml has them for the type; the means at the end with the fastest of
all. ggml is found as `ggml_matmul.py` finds it.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import tensorplug as tp
from tensorplug.device import BufferType
from tensorplug.graph.tensor import leaf
from tensorplug_cpu.threads import blas_threads

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from ggml_matmul import TILE, Peer
from oracle.ggml import Refused

TYPES = "f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q2_K q3_K q4_K q5_K q6_K iq4_nl mxfp4"
PAUSE = 0.02
"""Seconds until the threads of what ran before are asleep."""
MANY = 128
"""Rows of x from which on a single product takes long enough to be measured."""
READ = 1 << 28
"""Bytes that are read to find the speed of the memory."""

Run = Callable[[], float]
"""Runs once and returns the seconds that it took."""


def memory_for(backend: tp.Backend, weights: tp.Tensor, layout: str) -> BufferType:
    """Where weights lie best, as loaders choose it; or, with the layout `rows`, as they are."""
    extra = backend.device.extra_buffer_types if layout == "auto" else ()
    best = (kind for kind in extra if kind.prefers(weights))
    return next(best, backend.buffer_type)


@contextmanager
def our_walk(
    backend: tp.Backend,
    stored: bytes,
    dtype: tp.DType,
    sizes: tuple[int, int, int],
    count: int,
    layout: str,
) -> Iterator[Run]:
    """A function that walks over `count` products [k, n] with [k, m] in one plan."""
    k, n, m = sizes
    rows = np.frombuffer(stored, np.uint8).reshape(TILE, -1)
    matrix = np.tile(rows, (-(-n // TILE), 1))[:n]
    if not dtype.is_block:
        matrix = matrix.view(dtype.storage)
    x = np.random.default_rng(1).standard_normal((m, k), np.float32)
    where = memory_for(backend, leaf("w", (n, k), dtype), layout)
    places = [
        backend.place(f"w{i}", matrix, dtype=dtype, usage=tp.WEIGHTS, buffer_type=where)
        for i in range(count)
    ]
    places.append(backend.place("x", x))
    products = [tp.mul_mat(w, places[-1]) for w in places[:-1]]
    with tp.Scheduler([backend]) as scheduler, scheduler.schedule(products) as schedule:

        def run() -> float:
            start = time.perf_counter()
            schedule.run({})
            backend.synchronize()
            return time.perf_counter() - start

        yield run
    for placed in places:
        placed.place.buffer.close()


@contextmanager
def reader(threads: int) -> Iterator[Run]:
    """A function that reads READ bytes, each thread its own contiguous share."""
    shares = np.array_split(np.ones(READ // 4, np.float32), threads)
    with ThreadPoolExecutor(threads) as pool:

        def run() -> float:
            start = time.perf_counter()
            list(pool.map(lambda share: np.dot(share, share), shares))
            return time.perf_counter() - start

        yield run


def seconds(run: Run, repeats: int) -> float:
    """The best of `repeats` runs, after one that is not counted."""
    time.sleep(PAUSE)
    run()
    return min(run() for _ in range(repeats))


def measured(runs: dict[str, Run], arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each in each round, in turns."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.rounds):
        for name, run in runs.items():
            found[name].append(seconds(run, arguments.repeats))
    return found


def record(
    dtype: tp.DType, sizes: tuple[int, int, int], count: int, found: dict[str, list[float]]
) -> dict[str, Any]:
    """Speeds and ratios; seconds become GB of weights or GFLOP per second."""
    k, n, m = sizes
    stored = dtype.row_size(k) * n * count
    unit, work = ("GB/s", stored) if m == 1 else ("GFLOP/s", 2 * math.prod(sizes) * count)
    ours = found["ours"]
    line: dict[str, Any] = {"type": dtype.name, "n": m, "unit": unit}
    line |= {
        name: round(statistics.median(work / s / 1e9 for s in times), 1)
        for name, times in found.items()
        if name != "read"
    }
    for name, times in found.items():
        if name not in ("ours", "read"):
            ratios = [s / mine for s, mine in zip(times, ours, strict=True)]
            column = "ratio" if name == "plain" else "repacked"
            # Several layouts may be packed: the fastest counts.
            line[column] = min(round(statistics.median(ratios), 2), line.get(column, math.inf))
    if m == 1:
        shares = [s * stored / (READ * mine) for s, mine in zip(found["read"], ours, strict=True)]
        line["of memory"] = round(statistics.median(shares), 2)
    return line


def report(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One record for each type and number of rows of x."""
    peer = Peer(arguments.threads)
    kinds = dict(peer.buffer_types())
    k, n = map(int, arguments.matrix.split("x"))
    options = f"threads={arguments.threads}&activations={arguments.activations}"
    with tp.open(f"{arguments.device}?{options}&level={arguments.level}") as backend:
        for m in map(int, arguments.rows.split()):
            for name in arguments.types.split():
                dtype = tp.dtype(name)
                matrix = dtype.row_size(k) * n
                count = max(arguments.mib * 2**20 // matrix, 1) if m < MANY else 1
                values = np.random.default_rng(0).standard_normal((TILE, k)).astype(np.float32)
                stored = peer.stored(dtype, values)
                with ExitStack() as stack:
                    ours = our_walk(backend, stored, dtype, (k, n, m), count, arguments.layout)
                    runs = {"ours": stack.enter_context(ours)}
                    for kind, address in kinds.items():
                        walk = peer.walk(dtype, (k, n, m), count, address)
                        try:
                            runs[kind] = stack.enter_context(walk)
                        except Refused:
                            continue
                    if m == 1:
                        stack.enter_context(blas_threads(1))
                        runs["read"] = stack.enter_context(reader(arguments.threads))
                    yield record(dtype, (k, n, m), count, measured(runs, arguments))


def table(records: list[dict[str, Any]]) -> Iterator[str]:
    """Lines for people: each type, and for each number of rows the mean of the least ratios."""
    names = ("type", "n", "ours", "plain", "unit", "ratio", "repacked", "of memory")
    yield "".join(f"{name:>10}" for name in names)
    for line in records:
        yield "".join(f"{line.get(name, ''):>10}" for name in names)
    for rows in sorted({str(line["n"]) for line in records}, key=int):
        ratios = [_least(r) for r in records if str(r["n"]) == rows]
        mean = statistics.geometric_mean(max(ratio, 0.01) for ratio in ratios)
        yield f"n={rows}: geometric mean {mean:.2f}, least {min(ratios):.2f}"


def _least(line: dict[str, Any]) -> float:
    """The ratio to the fastest of ggml's kernels."""
    return float(min(line["ratio"], line.get("repacked", math.inf)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--matrix", default="2048x2048", help="KxN")
    parser.add_argument("--rows", default="1 512", help="rows of x, several in one string")
    parser.add_argument("--mib", type=int, default=192, help="MiB of weights that few rows walk")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--level", default="auto")
    parser.add_argument("--activations", default="int8")
    parser.add_argument("--layout", default="auto", choices=("auto", "rows"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2, help="walks in a turn; the best counts")
    tp.load_all()
    records = []
    for line in report(parser.parse_args()):
        records.append(line)
        print(json.dumps(line), flush=True)
    print("\n".join(table(records)), file=sys.stderr)


if __name__ == "__main__":
    main()
