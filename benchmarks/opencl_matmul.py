"""Products of matrices on an OpenCL device, each compared with NumPy's of the same shape in f32.

`matvec` walks matrices that together exceed the caches, one row of x: GB of stored weights per
second. `matmul` multiplies one matrix with many rows of x: GFLOP per second. NumPy's times are
taken right after the device's, so that both see the same machine; `ratio` is NumPy's time by ours.
Shapes are left out where a row is not a multiple of the type's block.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator

import numpy as np

import tensorplug as tp
from tensorplug_cpu import reference

TYPES = "f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q4_K q5_K q6_K"
COLD = "2048x8192"
SHAPES = "2048x2048 640x2048 2048x640 640x1024"
MATRICES = 3
"""Matrices that NumPy walks, which exceed the caches too."""
SLEEP = 0.2
"""Seconds; OpenBLAS's threads spin for a while after each product."""
TILE = 16
"""Rows that are encoded; a matrix repeats them."""


def weights(dtype: tp.DType, k: int, n: int) -> np.ndarray:
    """Stored rows of a [k, n] matrix."""
    rows = np.random.default_rng(0).standard_normal((TILE, k)).astype(np.float32)
    stored = reference.encode(dtype, rows).reshape(TILE, -1)
    return np.tile(stored, (-(-n // TILE), 1))[:n]


def best(work: Callable[[], object], repeats: int) -> float:
    """The best seconds of `work`, after the threads of what ran before have gone to sleep."""
    time.sleep(SLEEP)
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def measured(
    backend: tp.Backend, dtype: tp.DType, sizes: tuple[int, int, int], count: int, repeats: int
) -> tuple[float, float]:
    """Seconds of a product [k, n] with [k, m] on the device and by NumPy, walking `count`."""
    k, n, m = sizes
    stored = weights(dtype, k, n)
    data = np.random.default_rng(1).standard_normal((m, k)).astype(np.float32)
    matrices = [backend.place(f"w{i}", stored, dtype=dtype, usage=tp.WEIGHTS) for i in range(count)]
    x = backend.place("x", data)
    plain = np.ones((min(count, MATRICES), n, k), np.float32)
    out = np.empty((m, n), np.float32)
    products = [tp.mul_mat(w, x) for w in matrices]
    with tp.Scheduler([backend]) as scheduler, scheduler.schedule(products) as schedule:

        def on_device() -> None:
            schedule.run({})
            backend.synchronize()

        def in_numpy() -> None:
            for i in range(count):
                np.matmul(data, plain[i % len(plain)].T, out=out)

        device, numpy = best(on_device, repeats), best(in_numpy, repeats)
    for w in (*matrices, x):
        w.place.buffer.close()
    return device / count, numpy / count


def sizes_of(text: str, m: int, dtype: tp.DType) -> Iterator[tuple[int, int, int]]:
    for shape in text.split():
        k, n = map(int, shape.split("x"))
        if k % dtype.block == 0:
            yield k, n, m


def report(arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    """One record for each product."""
    with tp.open(arguments.device) as backend:
        for name in arguments.types.split():
            dtype = tp.dtype(name)
            for m in map(int, arguments.few.split()):
                for sizes in sizes_of(arguments.cold, m, dtype):
                    stored = dtype.row_size(sizes[0]) * sizes[1]
                    count = max(arguments.mib * 2**20 // stored, 1)
                    took = measured(backend, dtype, sizes, count, arguments.repeats)
                    plain = 4 * sizes[0] * sizes[1]
                    yield record("matvec", name, sizes, took, "GB/s", (stored, plain))
            for sizes in sizes_of(arguments.shapes, arguments.rows, dtype):
                took = measured(backend, dtype, sizes, 1, arguments.repeats)
                work = 2 * math.prod(sizes)
                yield record("matmul", name, sizes, took, "GFLOP/s", (work, work))


def record(
    kind: str,
    name: str,
    sizes: tuple[int, int, int],
    took: tuple[float, float],
    unit: str,
    work: tuple[int, int],
) -> dict[str, object]:
    """Speeds of the device and of NumPy."""
    device, numpy = took
    return {
        "kind": kind,
        "type": name,
        "k, n, m": sizes,
        "us": round(device * 1e6),
        unit: round(work[0] / device / 1e9, 1),
        f"numpy {unit}": round(work[1] / numpy / 1e9, 1),
        "ratio": round(numpy / device, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="opencl:0")
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--cold", default=COLD, help="KxN of matvec, several in one string")
    parser.add_argument("--few", default="1", help="rows of x of matvec")
    parser.add_argument("--mib", type=int, default=192, help="MiB of weights that matvec walks")
    parser.add_argument("--shapes", default=SHAPES, help="KxN of matmul")
    parser.add_argument("--rows", type=int, default=512, help="rows of x of matmul")
    parser.add_argument("--repeats", type=int, default=9)
    tp.load_all()
    for record in report(parser.parse_args()):
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
