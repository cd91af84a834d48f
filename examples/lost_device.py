"""Survives the loss of a device in the middle of a run: python lost_device.py.

The device that gets lost is a fake one of tensorplug-testing; a GPU that falls off its bus raises
the same DeviceLost.
"""

import logging

import numpy as np

import tensorplug as tp
from tensorplug_testing.null import null_devices

logging.basicConfig(format="log: %(message)s")

rng = np.random.default_rng(0)
first, second = (rng.standard_normal((4, 4), dtype=np.float32) for _ in range(2))
(card,) = null_devices(1, family="card")

with card.open() as fast, tp.open("cpu") as cpu:
    w1 = fast.place("first", first, usage=tp.WEIGHTS)
    w2 = fast.place("second", second, usage=tp.WEIGHTS)
    x = tp.input("x", (2, 4), tp.F32)
    y = tp.mul_mat(w2, tp.relu(tp.mul_mat(w1, x)), name="y")

    scheduler = tp.Scheduler([fast, cpu], on_failure="replan")
    scheduler.add_sources({w1: lambda: first, w2: lambda: second})  # where to read weights again
    batch = np.ones((2, 4), np.float32)
    with scheduler.schedule(y) as run:
        print("computed by", run.device_of(y))
        before = run.run({x: batch})[y]
        card.lose()
        after = run.run({x: batch})[y]
        print("computed by", run.device_of(y))
        print("same result:", np.allclose(before, after, rtol=1e-5))
    scheduler.close()
