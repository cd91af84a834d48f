"""Encoders against the `gguf` package, and what holds for any encoder that looks for the best."""

import gguf
import numpy as np
import pytest

import tensorplug as tp
from tensorplug.blocks.rows import decode_rows
from tensorplug.dtypes import (
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
    Q2_K,
    Q3_K,
    Q4_1,
    Q5_0,
    Q5_1,
    Q5_K,
    Q8_1,
    Q8_K,
    TQ1_0,
)
from tensorplug_cpu.encode import CHUNK, PACKAGED, can_encode, encode_rows

SEARCHED = {
    Q2_K: 0.09,
    Q3_K: 0.025,
    tp.Q4_K: 6e-3,
    Q5_K: 1.6e-3,
    tp.Q6_K: 5e-4,
    IQ4_NL: 6e-3,
    IQ4_XS: 7e-3,
    NVFP4: 1.1e-2,
    Q2_0: 0.65,
    Q1_0: 0.37,
    Q8_1: 3e-5,
    Q8_K: 5e-5,
}
"""Types with encoders of our own, and the largest share of the variance of normal values lost."""

WEIGHTED = [t for t in SEARCHED if "K" in t.name or t.name.startswith("iq4")]
WEIGHTED = [t for t in WEIGHTED if t is not Q8_K] + [tp.Q4_0, Q4_1, Q5_0, Q5_1]


def encoded(dtype, values, importance=None):
    out = np.empty((len(values), dtype.row_size(values.shape[1])), np.uint8)
    encode_rows(dtype, values, out, importance)
    return out


def decoded(dtype, raw):
    out = np.empty((len(raw), raw.shape[1] // dtype.size * dtype.block), np.float32)
    decode_rows(dtype, raw, out)
    return out


def normal(rows, elements, seed=4):
    return np.random.default_rng(seed).normal(size=(rows, elements)).astype(np.float32)


@pytest.mark.parametrize("dtype", sorted({*PACKAGED, *SEARCHED}, key=lambda t: t.id), ids=str)
def test_type_has_an_encoder(dtype):
    assert can_encode(dtype) is True


@pytest.mark.parametrize("dtype", sorted(PACKAGED, key=lambda t: t.id), ids=str)
def test_rows_are_encoded_as_gguf_encodes_them(dtype):
    values = normal(3, 512)

    out = encoded(dtype, values)

    theirs = gguf.GGMLQuantizationType(dtype.id)
    np.testing.assert_array_equal(out, gguf.quants.quantize(values, theirs))


@pytest.mark.parametrize(("dtype", "share"), SEARCHED.items(), ids=str)
def test_little_of_normal_values_is_lost(dtype, share):
    values = normal(32, 512)

    back = decoded(dtype, encoded(dtype, values))

    assert np.mean(np.square(back - values)) <= share


@pytest.mark.parametrize("dtype", WEIGHTED, ids=str)
def test_importance_lowers_the_error_where_it_is_large(dtype):
    values, importance = normal(32, 512), np.tile(np.float32([0.01, 10]), 256)

    plain, weighted = (
        np.mean(np.square(decoded(dtype, encoded(dtype, values, given)) - values)[:, 1::2])
        for given in (None, importance)
    )

    assert weighted < 0.95 * plain


@pytest.mark.parametrize("dtype", [tp.Q8_0, MXFP4, TQ1_0, Q8_K, NVFP4], ids=str)
def test_types_without_a_search_ignore_importance(dtype):
    values = normal(2, 512)

    out = encoded(dtype, values, np.linspace(0, 1, 512, dtype=np.float32))

    np.testing.assert_array_equal(out, encoded(dtype, values))


@pytest.mark.parametrize("dtype", SEARCHED, ids=str)
def test_zeros_stay_zeros(dtype):
    back = decoded(dtype, encoded(dtype, np.zeros((2, 512), np.float32)))

    np.testing.assert_array_equal(back, 0)


@pytest.mark.parametrize("weights", [None, "importance"])
@pytest.mark.parametrize("dtype", SEARCHED, ids=str)
def test_a_block_alone_is_encoded_as_among_others(dtype, weights):
    values = normal(5, dtype.block)
    importance = weights and np.linspace(0.1, 2, dtype.block, dtype=np.float32)

    alone = np.concatenate([encoded(dtype, row[None], importance) for row in values])

    np.testing.assert_array_equal(alone, encoded(dtype, values, importance))


@pytest.mark.parametrize("dtype", [tp.Q6_K, tp.Q4_K], ids=str)
def test_a_row_longer_than_a_chunk_is_encoded_like_its_parts(dtype):
    half = normal(1, CHUNK)
    values = np.concatenate([half, half], axis=1)
    importance = np.linspace(0.1, 2, CHUNK, dtype=np.float32)

    out = encoded(dtype, values, np.concatenate([importance, importance]))

    np.testing.assert_array_equal(out, np.tile(encoded(dtype, half, importance), 2))


@pytest.mark.parametrize("dtype", SEARCHED, ids=str)
@pytest.mark.parametrize("wild", [np.nan, np.inf, 3e38])
def test_a_wild_value_spoils_no_other_block(dtype, wild):
    values = normal(3, 512)
    values[1, 7] = wild

    out = encoded(dtype, values)

    blocks, wanted = (a.reshape(-1, dtype.size) for a in (out, encoded(dtype, normal(3, 512))))
    struck = 512 // dtype.block
    np.testing.assert_array_equal(np.delete(blocks, struck, 0), np.delete(wanted, struck, 0))


@pytest.mark.parametrize("dtype", [*SEARCHED, Q4_1], ids=str)
def test_no_rows_are_encoded_to_nothing(dtype):
    out = encoded(dtype, np.empty((0, 512), np.float32), np.ones(512, np.float32))

    assert out.shape == (0, dtype.row_size(512))


def test_importance_of_another_length_is_refused():
    with pytest.raises(tp.ShapeError) as caught:
        encoded(tp.Q4_K, normal(2, 512), np.ones(256, np.float32))

    assert str(caught.value) == (
        "cpu: importance of 256 values for rows of 512 elements; give one value per column"
    )


def test_numbers_that_are_no_type_of_blocks_or_floats_are_refused():
    with pytest.raises(tp.Unsupported, match=r"^cpu: values cannot be encoded as i32$"):
        encode_rows(tp.I32, normal(1, 4), np.empty((1, 16), np.uint8))
