"""Arrays of PyTorch, CuPy, JAX or NumPy in and out, by DLPack: python arrays.py torch."""

import sys
from importlib import import_module

import tensorplug as tp

lib = import_module(sys.argv[1] if sys.argv[1:] else "numpy")
if lib.__name__ == "jax":
    lib = import_module("jax.numpy")

weights = lib.reshape(lib.arange(12, dtype=lib.float32), (3, 4))
batch = lib.ones((2, 4), dtype=lib.float32)

with tp.open("cpu") as cpu:
    w = tp.from_dlpack(weights, cpu, name="w")  # no copy: `w` lies where `weights` lies
    x = tp.input("x", (2, 4), tp.F32)
    y = x @ w.T
    with tp.Scheduler([cpu]).schedule(y) as run:
        results = run.run({x: batch})  # an input of any of these libraries
        shared = lib.from_dlpack(results.shared(y))  # no copy: valid until the next run
        print(shared.tolist())
        if not hasattr(weights, "at"):  # JAX's arrays do not change
            weights[:] = 1
            print(run.run()[y].tolist())  # the next run sees what the owner wrote
