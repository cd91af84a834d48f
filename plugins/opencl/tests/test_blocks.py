"""Blocks of any bytes decode to the values of the reference."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.dtypes import DTYPES
from tensorplug_cpu.reference.blocks import decode_rows

BLOCKS = [t for t in DTYPES if t.is_block]


@pytest.mark.parametrize("dtype", BLOCKS, ids=lambda t: t.name)
def test_any_bytes_decode_as_in_the_reference(stream, dtype):
    count = 1024 // dtype.block * 64
    stored = np.random.default_rng(3).integers(0, 256, (8, count * dtype.size // 8), np.uint8)
    elements = count * dtype.block // 8
    table = tp.input("table", (8, elements), dtype)
    ids = tp.input("ids", (8,), tp.I32)
    y = tp.get_rows(table, ids)
    with np.errstate(all="ignore"):
        wanted = decode_rows(dtype, stored).astype(np.float32)

    with tp.Scheduler([stream]).schedule(y) as run:
        got = run.run({table: stored, ids: np.arange(8, dtype=np.int32)})[y]

    np.testing.assert_array_equal(got, wanted)
