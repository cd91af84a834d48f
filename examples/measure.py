"""How fast each device multiplies, and how fast it reads: python measure.py."""

from time import perf_counter

import numpy as np

import tensorplug as tp

SIZE, ROUNDS = 1024, 5


def seconds(schedule: tp.Schedule, batch: dict[tp.Tensor, np.ndarray], y: tp.Tensor) -> float:
    """The shortest of several runs; the first plans kernels and is not counted."""
    schedule.run(batch)[y]
    times = []
    for _ in range(ROUNDS):
        start = perf_counter()
        schedule.run()[y]
        times.append(perf_counter() - start)
    return min(times)


rng = np.random.default_rng(0)
weights = rng.standard_normal((SIZE, SIZE), dtype=np.float32)
for device in tp.devices():
    with device.open() as stream:
        w = stream.place("w", weights, usage=tp.WEIGHTS)
        for columns in (1, 256):
            x = tp.input("x", (columns, SIZE), tp.F32)
            y = tp.mul_mat(w, x)
            with tp.Scheduler([stream]).schedule(y) as schedule:
                took = seconds(schedule, {x: weights[:columns]}, y)
            flops, read = 2 * columns * SIZE * SIZE / took, w.nbytes / took
            print(
                f"{device.name}, {columns} columns: {1e6 * took:.0f} us, "
                f"{flops / 1e9:.1f} GFLOP/s, weights at {read / 1e9:.1f} GB/s"
            )
