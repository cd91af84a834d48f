"""Decoders against the `gguf` package, and half-precision numbers bit by bit."""

import sys

import gguf
import numpy as np
import pytest

import tensorplug as tp
import tensorplug.blocks
from tensorplug.blocks import rows
from tensorplug.blocks.formulas import DECODERS
from tensorplug.blocks.half import bf16_to_f32, f16_to_f32, f32_to_bf16
from tensorplug.blocks.rows import can_decode, decode_rows
from tensorplug.dtypes import DTYPES, IQ4_XS, Q1_0, Q2_0, Q8_1, Q8_K
from tensorplug_cpu.reference import blocks
from tensorplug_testing.cases.blocks import SCATTERED, random_rows

UNKNOWN = {Q8_1, Q8_K, Q1_0, Q2_0}
"""Types that `gguf` does not decode."""

BLOCKS = [t for t in DTYPES if t.is_block]
OWN = [t for t in DECODERS if t not in UNKNOWN]


@pytest.fixture(autouse=True)
def quiet():
    """Any bytes are valid input, scales that are infinite or NaN among them."""
    with np.errstate(all="ignore"):
        yield


def theirs(dtype):
    return gguf.GGMLQuantizationType(dtype.id)


def bits(array):
    """The bits of f32 values, all kinds of NaN alike."""
    return np.where(np.isnan(array), np.uint32(0x7FC00000), array.view(np.uint32))


# --- blocks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", BLOCKS, ids=str)
def test_all_block_types_are_decoded(dtype):
    assert can_decode(dtype)


@pytest.mark.parametrize("dtype", sorted(UNKNOWN, key=lambda t: t.id), ids=str)
def test_types_that_gguf_lacks_decode_by_their_formula_on_any_bytes(dtype):
    raw = np.random.default_rng(dtype.id).integers(0, 256, (64, 4 * dtype.size), dtype=np.uint8)
    out = np.empty((64, 4 * dtype.block), np.float32)

    decode_rows(dtype, raw, out)

    np.testing.assert_array_equal(bits(out), bits(blocks.decode_rows(dtype, raw).astype("f4")))


@pytest.mark.parametrize("dtype", OWN, ids=str)
def test_own_decoders_agree_with_gguf_bit_by_bit_on_any_bytes(dtype):
    raw = np.random.default_rng(dtype.id).integers(0, 256, (64, 4 * dtype.size), dtype=np.uint8)
    out = np.empty((64, 4 * dtype.block), np.float32)

    decode_rows(dtype, raw, out)

    np.testing.assert_array_equal(bits(out), bits(gguf.quants.dequantize(raw, theirs(dtype))))


@pytest.mark.parametrize("dtype", OWN, ids=str)
def test_every_byte_value_in_every_place_decodes_as_in_gguf(dtype):
    raw = (np.arange(256)[:, None] + 37 * np.arange(dtype.size)).astype(np.uint8)
    out = np.empty((256, dtype.block), np.float32)

    decode_rows(dtype, raw, out)

    np.testing.assert_array_equal(bits(out), bits(gguf.quants.dequantize(raw, theirs(dtype))))


@pytest.mark.parametrize("dtype", [tp.Q4_K, IQ4_XS], ids=str)
def test_rows_with_gaps_between_them_are_decoded(dtype):
    wide = np.random.default_rng(3).integers(0, 60, (8, 2 * dtype.size + 5), dtype=np.uint8)
    raw = wide[::2, : 2 * dtype.size]
    out = np.empty((4, 512), np.float32)

    decode_rows(dtype, raw, out)

    wanted = gguf.quants.dequantize(np.ascontiguousarray(raw), theirs(dtype))
    np.testing.assert_array_equal(bits(out), bits(wanted))


# --- the public function ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", BLOCKS, ids=str)
def test_decode_gives_the_values_of_the_reference_bit_by_bit(dtype):
    shape = (3, 2, 2 * dtype.block)
    stored = random_rows(np.random.default_rng(dtype.id), dtype, shape)
    if dtype not in SCATTERED:
        stored = np.random.default_rng(dtype.id).integers(0, 256, stored.shape, dtype=np.uint8)

    values = tp.blocks.decode(stored.tobytes(), dtype, shape)

    wanted = blocks.decode_rows(dtype, stored.reshape(6, -1)).astype(np.float32).reshape(shape)
    np.testing.assert_array_equal(bits(values), bits(wanted))


@pytest.mark.parametrize("name", ["f32", "f16", "f64"])
def test_decode_takes_plain_numbers_of_any_rank_by_name(name):
    numbers = np.random.default_rng(5).uniform(-9, 9, (2, 3, 5)).astype(tp.dtype(name).numpy)

    np.testing.assert_array_equal(tp.blocks.decode(numbers, name, (2, 3, 5)), numbers.astype("f4"))
    assert tp.blocks.decode(numbers[0, 0, :1], name, ()).shape == ()
    assert tp.blocks.decode(b"", name, (0, 4)).shape == (0, 4)


def test_decode_widens_bf16():
    assert tp.blocks.decode(np.array([0x3F80, 0xC000], np.uint16), "bf16", (2,)).tolist() == [1, -2]


def test_decode_refuses_integers_and_bytes_that_do_not_fill_the_shape():
    with pytest.raises(tp.Unsupported) as integers:
        tp.blocks.decode(bytes(8), tp.I32, (2,))
    with pytest.raises(tp.ShapeError) as short:
        tp.blocks.decode(bytes(33), "q8_0", (1, 32))

    assert str(integers.value) == ("blocks.decode: i32 is an integer type; view the bytes in NumPy")
    assert str(short.value) == (
        "blocks.decode: 33 bytes are not q8_0 of shape (1, 32), which takes 34"
    )


def test_types_whose_tables_are_missing_are_refused_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf.quants", None)
    rows.gguf_quants.cache_clear()

    with pytest.raises(tp.Unsupported) as error:
        rows.gguf_quants()

    assert str(error.value) == (
        "blocks: the tables of i-quants, tq1_0, tq2_0, mxfp4 and nvfp4 are in the package gguf "
        "(import of gguf.quants halted; None in sys.modules); pip install gguf"
    )


# --- half precision -------------------------------------------------------------------------

ALL_BITS = np.arange(1 << 16, dtype=np.uint16)
FINITE = ALL_BITS[(ALL_BITS & 0x7C00) != 0x7C00]


INFINITE = np.append(FINITE, np.uint16(0xFC00))


@pytest.mark.parametrize("half", [ALL_BITS, FINITE, INFINITE], ids=["all", "finite", "infinite"])
def test_every_f16_is_widened_exactly(half):
    source = half.view(np.float16)
    out = np.empty(source.shape, np.float32)

    f16_to_f32(source, out)

    np.testing.assert_array_equal(bits(out), bits(source.astype(np.float32)))


def test_f16_with_strides_is_widened():
    source = FINITE[:2000].view(np.float16).reshape(40, 50)[:, ::2].T
    out = np.empty(source.shape, np.float32)

    f16_to_f32(source, out)

    np.testing.assert_array_equal(out, source.astype(np.float32))


def test_every_bf16_is_widened_and_rounded_back_to_itself():
    wide = np.empty(ALL_BITS.shape, np.float32)
    back = np.empty_like(ALL_BITS)

    bf16_to_f32(ALL_BITS, wide)
    f32_to_bf16(wide, back)

    np.testing.assert_array_equal(wide.view(np.uint32), ALL_BITS.astype(np.uint32) << 16)
    numbers = ~np.isnan(wide)
    np.testing.assert_array_equal(back[numbers], ALL_BITS[numbers])


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (0x3F808000, 0x3F80),  # a tie goes to the even neighbour below
        (0x3F818000, 0x3F82),  # and above
        (0x3F808001, 0x3F81),
        (0x7F7FFFFF, 0x7F80),  # the largest f32 rounds to infinity
        (0x7F800000, 0x7F80),
        (0x7F800001, 0x7FC0),  # NaN whose upper half looks like infinity stays NaN
        (0xFFFFFFFF, 0xFFFF),
    ],
)
def test_f32_is_rounded_to_bf16_half_to_even(given, wanted):
    out = np.empty(1, np.uint16)

    f32_to_bf16(np.array([given], np.uint32).view(np.float32), out)

    assert out[0] == wanted
