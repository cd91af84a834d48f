"""Compiled encoders against those in NumPy: the same bytes at every level, whatever the values."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug_cpu.encode import encode_rows as encode_rows_in_numpy
from tensorplug_cpu.quantize.rows import installed_encoder
from tensorplug_native.device import NativeDevice
from tensorplug_native.library import library
from tensorplug_native.rows import COMPILED, WEIGHED, encode_rows

from .streams import EACH_LEVEL, LEVELS, numbers

TYPES = sorted(COMPILED, key=lambda t: t.id)
SHAPE = (5, 768)
"""Five rows of three blocks: as many as no vector holds."""


def any_bits(rng):
    """Bit patterns of all finite numbers. Of infinities with NaN the sign of NaN is open."""
    found = rng.integers(0, 1 << 32, SHAPE, np.uint32).view(np.float32)
    return np.where(np.isfinite(found), found, np.float32(0))


def sprinkled(rng, value):
    return np.where(rng.random(SHAPE) < 0.01, value, rng.normal(size=SHAPE))


VALUES = {
    "normal": lambda rng: rng.normal(size=SHAPE),
    "heavy-tailed": lambda rng: 0.02 * rng.standard_t(1.5, size=SHAPE),
    "positive": lambda rng: np.abs(rng.normal(size=SHAPE)),
    "negative": lambda rng: -np.abs(rng.normal(size=SHAPE)),
    "in steps": lambda rng: rng.integers(-8, 9, size=SHAPE) / 4 + 0.0,
    "sparse": lambda rng: np.where(rng.random(SHAPE) < 0.01, rng.normal(size=SHAPE), 0.0),
    "zeros": lambda rng: np.zeros(SHAPE),
    "negative zeros": lambda rng: -np.zeros(SHAPE),
    "constant blocks": lambda rng: np.repeat(rng.normal(size=(5, 24)), 32, axis=1),
    "least magnitudes": lambda rng: 1.5e-45 * rng.integers(-5, 6, size=SHAPE),
    "subnormal": lambda rng: 1e-40 * rng.normal(size=SHAPE),
    "squares vanish": lambda rng: 1e-25 * rng.normal(size=SHAPE),
    "near what counts as zero": lambda rng: 1e-15 * rng.normal(size=SHAPE),
    "squares overflow": lambda rng: 1e19 * rng.normal(size=SHAPE),
    "huge": lambda rng: 1e38 * rng.uniform(-3, 3, size=SHAPE),
    "of all magnitudes": lambda rng: rng.normal(size=SHAPE) * 10.0 ** rng.integers(-44, 38, SHAPE),
    "with infinity": lambda rng: sprinkled(rng, np.inf),
    "with -infinity": lambda rng: sprinkled(rng, -np.inf),
    "with NaN": lambda rng: sprinkled(rng, np.nan),
    "infinities": lambda rng: np.full(SHAPE, np.inf),
    "of any bits": any_bits,
}


def room(dtype, values):
    return np.empty((len(values), dtype.row_size(values.shape[1])), np.uint8)


def encoded(level, dtype, values, importance=None):
    out = room(dtype, values)
    encode_rows(library().levels[level], dtype, values, out, importance)
    return out


def in_numpy(dtype, values, importance=None):
    out = room(dtype, values)
    encode_rows_in_numpy(dtype, values, out, importance)
    return out


@pytest.mark.filterwarnings("ignore:invalid value|overflow|divide by zero:RuntimeWarning")
@pytest.mark.parametrize("level", EACH_LEVEL)
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_bytes_are_those_of_numpy(dtype, kind, level):
    values = VALUES[kind](np.random.default_rng([dtype.id, len(kind)])).astype(np.float32)

    out = encoded(level, dtype, values)

    np.testing.assert_array_equal(out, in_numpy(dtype, values))


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_row_may_be_any_number_of_blocks(dtype, blocks):
    values = numbers(1, blocks * dtype.block)

    out = encoded(LEVELS[-1], dtype, values)

    np.testing.assert_array_equal(out, in_numpy(dtype, values))


def test_nothing_is_written_beyond_the_blocks():
    values = numbers(3, 256)
    memory = np.full(3 * 144 + 64, 7, np.uint8)

    encode_rows(library().level("auto"), tp.Q4_K, values, memory[:432].reshape(3, 144))

    np.testing.assert_array_equal(memory[:432].reshape(3, 144), in_numpy(tp.Q4_K, values))
    np.testing.assert_array_equal(memory[432:], 7)


def test_compiled_encoder_takes_no_rows_and_writes_none():
    out = encoded(LEVELS[-1], tp.Q4_K, np.empty((0, 512), np.float32))

    assert out.shape == (0, 288)


def test_rows_that_are_no_whole_blocks_are_refused():
    with pytest.raises(tp.ShapeError, match=r"^q4_K: a row of 100 elements"):
        encode_rows(library().level("auto"), tp.Q4_K, numbers(2, 100), np.empty((2, 144), np.uint8))


def test_memory_of_another_size_is_refused():
    out = np.empty((2, 143), np.uint8)

    with pytest.raises(tp.ShapeError) as caught:
        encode_rows(library().level("auto"), tp.Q4_K, numbers(2, 256), out)

    assert str(caught.value) == (
        "cpu: 2 rows of 256 values take 2 x 144 bytes of q4_K, and there are 2 x 143"
    )


def test_values_and_blocks_may_lie_with_gaps():
    values, out = numbers(4, 512)[:, ::2], np.zeros((4, 200), np.uint8)[:, :144]

    encode_rows(library().level("auto"), tp.Q4_K, values, out)

    np.testing.assert_array_equal(out, in_numpy(tp.Q4_K, np.ascontiguousarray(values)))


FINITE = [kind for kind in VALUES if "infinit" not in kind and "NaN" not in kind]
"""Where importance is known, others are refused before; the sign of a NaN would be open."""


@pytest.mark.filterwarnings("ignore:invalid value|overflow|divide by zero:RuntimeWarning")
@pytest.mark.parametrize("level", EACH_LEVEL)
@pytest.mark.parametrize("kind", FINITE)
@pytest.mark.parametrize("dtype", sorted(WEIGHED, key=lambda t: t.id), ids=str)
def test_bytes_by_importance_are_those_of_numpy(dtype, kind, level):
    rng = np.random.default_rng([dtype.id, len(kind), 1])
    values = VALUES[kind](rng).astype(np.float32)
    # A block of none, and values of all magnitudes.
    importance = (rng.random(SHAPE[1]) ** 8).astype(np.float32)
    importance[:256] *= kind != "sparse"

    out = encoded(level, dtype, values, importance)

    np.testing.assert_array_equal(out, in_numpy(dtype, values, importance))


@pytest.mark.parametrize("dtype", [tp.Q4_K, tp.Q4_0, tp.Q8_0], ids=str)
def test_importance_counts_as_in_numpy(dtype):
    values, importance, out = numbers(2, 512), np.linspace(0, 2, 512, dtype=np.float32), []
    for encode in (NativeDevice().encode_rows, encode_rows_in_numpy):
        out.append(room(dtype, values))
        encode(dtype, values, out[-1], importance)

    np.testing.assert_array_equal(*out)


def test_compiled_encoder_refuses_importance_of_another_length():
    values, importance = numbers(2, 512), np.ones(256, np.float32)

    with pytest.raises(tp.ShapeError, match=r"^cpu: importance of 256 values for rows of 512"):
        encode_rows(library().level("auto"), tp.Q4_K, values, room(tp.Q4_K, values), importance)


def test_quantising_finds_the_encoders_of_the_installed_variant():
    found = installed_encoder()

    assert found == tp.device("cpu").encode_rows
    assert isinstance(found.__self__, NativeDevice)


def test_quantising_without_a_cpu_backend_encodes_in_numpy(monkeypatch):
    def none(spec):
        raise tp.BackendNotFound(spec)

    monkeypatch.setattr(tp, "device", none)

    assert installed_encoder() is encode_rows_in_numpy
