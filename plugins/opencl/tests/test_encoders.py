"""Blocks that the device writes are those of the CPU plugin, byte by byte."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug_cpu.encode import encode_rows
from tensorplug_simt.families.encode import ENCODERS

TYPES = sorted(ENCODERS, key=lambda t: t.id)


def _values(kind: str) -> np.ndarray:
    """f32 [64, 1024] of one kind."""
    random = np.random.default_rng(5)
    if kind == "normal":
        return random.standard_normal((64, 1024)).astype(np.float32)
    if kind == "wide":
        powers = 10.0 ** random.integers(-6, 4, (64, 32, 1))
        return (random.standard_normal((64, 32, 32)) * powers).reshape(64, 1024).astype(np.float32)
    if kind == "ties":
        return random.integers(-4, 5, (64, 1024)).astype(np.float32) / 2
    # Around powers of two the logarithm of a scale is rounded up.
    steps = random.integers(-40, 40, (64, 1024)).astype(np.int32)
    powers = np.exp2(random.integers(-20, 12, (64, 1))).astype(np.float32)
    return ((powers.view(np.int32) + steps).view(np.float32)).astype(np.float32)


@pytest.mark.parametrize("kind", ["normal", "wide", "ties", "powers"])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
def test_blocks_have_the_bytes_of_the_cpu_plugin(stream, dtype, kind):
    values = _values(kind)
    wanted = np.empty((64, dtype.row_size(1024)), np.uint8)
    encode_rows(dtype, values, wanted)
    x = tp.input("x", (64, 1024), tp.F32)
    y = tp.cast(x, dtype)

    with tp.Scheduler([stream]).schedule(y) as run:
        got = run.run({x: values})[y]

    np.testing.assert_array_equal(got, wanted)
