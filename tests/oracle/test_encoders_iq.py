"""The IQ formats where searches are hard to tell apart: ties, wild importance, groups of zeros.

On all of these our blocks are those of ggml to the last bit; the group of zeros in iq3_s is where
we part, on purpose.
"""

import numpy as np
import pytest
from oracle.client import Refusal

from tensorplug.blocks.rows import decode_rows
from tensorplug.dtypes import IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS
from tensorplug_cpu.encode import encode_rows
from tensorplug_cpu.encoders import NEEDS_IMPORTANCE

TYPES = [IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S]
SHAPE = (64, 512)
VALUES = {
    "normal": lambda rng: rng.normal(size=SHAPE),
    "heavy-tailed": lambda rng: 0.02 * rng.standard_t(2.5, size=SHAPE),
    "small integers": lambda rng: rng.integers(-3, 4, size=SHAPE),
    "constant rows": lambda rng: np.broadcast_to(rng.normal(size=(64, 1)), SHAPE),
}
IMPORTANCE = {
    "even": lambda rng: np.ones(512),
    "over eight decades": lambda rng: 10 ** rng.uniform(-8, 0, 512),
    "zero for some": lambda rng: np.where(rng.random(512) < 0.2, 0, rng.exponential(size=512)),
    "large for every second": lambda rng: np.tile([0.01, 10], 256),
}


def encoded(dtype, values, importance):
    out = np.empty((len(values), dtype.row_size(values.shape[1])), np.uint8)
    encode_rows(dtype, values, out, importance)
    return out


def lost(dtype, raw, values):
    back = np.empty(values.shape, np.float32)
    decode_rows(dtype, raw, back)
    return float(np.sum(np.square(back - values)))


@pytest.mark.parametrize("weights", IMPORTANCE)
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_weighted_blocks_are_those_of_ggml(dtype, kind, weights, recent):
    rng = np.random.default_rng(dtype.id)
    values = np.ascontiguousarray(VALUES[kind](rng), np.float32)
    importance = IMPORTANCE[weights](rng).astype(np.float32)

    theirs = recent.encode(dtype, values, importance)

    np.testing.assert_array_equal(encoded(dtype, values, importance), theirs)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("dtype", [t for t in TYPES if t not in NEEDS_IMPORTANCE], ids=str)
def test_blocks_of_values_alone_are_those_of_ggml(dtype, kind, recent):
    values = np.ascontiguousarray(VALUES[kind](np.random.default_rng(dtype.id)), np.float32)

    theirs = recent.encode(dtype, values)

    np.testing.assert_array_equal(encoded(dtype, values, None), theirs)


@pytest.mark.parametrize("dtype", sorted(NEEDS_IMPORTANCE, key=lambda t: t.id), ids=str)
def test_ggml_too_refuses_the_coarsest_types_without_importance(dtype, recent):
    assert isinstance(recent.encode(dtype, np.ones((1, 256), np.float32)), Refusal)


def test_iq3_s_loses_less_than_ggml_behind_a_group_of_zeros(recent):
    values = np.random.default_rng(0).normal(size=(4, 256)).astype(np.float32)
    values[:, 32:64] = 0

    theirs = recent.encode(IQ3_S, values)

    ours = encoded(IQ3_S, values, None)
    assert lost(IQ3_S, ours, values) < 0.1 * lost(IQ3_S, theirs, values)
