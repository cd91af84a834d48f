"""f64 without f64 on the device: patterns of bits, rounded as NumPy rounds."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.dtypes import dtype

COUNT = 20_000


def _any_bits(kind: str, size: int) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 256, COUNT * size, np.uint8).view(kind)


def _spread() -> np.ndarray:
    random = np.random.default_rng(2)
    return random.standard_normal(COUNT) * 10.0 ** random.integers(-46, 40, COUNT)


def _integers() -> np.ndarray:
    random = np.random.default_rng(3)
    return random.integers(-(2**63), 2**63 - 1, COUNT) >> random.integers(0, 63, COUNT)


CASES = {
    "any f64 to f32": (_any_bits("<f8", 8), "<f4"),
    "near f64 to f32": (_spread(), "<f4"),
    "any f32 to f64": (_any_bits("<f4", 4), "<f8"),
    "subnormal f32 to f64": ((_any_bits("<u4", 4) >> 9).view("<f4"), "<f8"),
    "i64 to f64": (_integers(), "<f8"),
    "i64 to f32": (_integers(), "<f4"),
    "i64 to i32": (_integers(), "<i4"),
    "f64 to i64": (_spread().clip(-(2.0**62), 2.0**62), "<i8"),
    "f64 to i32": (_spread().clip(-(2.0**30), 2.0**30), "<i4"),
}


@pytest.mark.parametrize("name", CASES)
def test_conversion_is_that_of_numpy(stream, name):
    values, kind = CASES[name]
    x = tp.input("x", values.shape, dtype(values.dtype))
    y = tp.cast(x, dtype(np.dtype(kind)))
    with np.errstate(all="ignore"):
        wanted = values.astype(kind)

    with tp.Scheduler([stream]).schedule(y) as run:
        got = run.run({x: values})[y]

    np.testing.assert_array_equal(got, wanted)
