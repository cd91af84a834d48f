"""Encoders of the IQ formats: what they lose, what they refuse, and how grids are searched."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.blocks.rows import decode_rows
from tensorplug.dtypes import IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS
from tensorplug_cpu.encode import encode_rows
from tensorplug_cpu.encoders import ENCODERS, NEEDS_IMPORTANCE
from tensorplug_cpu.encoders.iq_grid import RINGS, build, grid

LOST = {
    IQ1_S: 0.25,
    IQ1_M: 0.22,
    IQ2_XXS: 0.125,
    IQ2_XS: 0.095,
    IQ2_S: 0.067,
    IQ3_XXS: 0.035,
    IQ3_S: 0.027,
}
"""The largest share of the variance of normal values that may be lost, all being of one weight."""

FREE = [t for t in LOST if t not in NEEDS_IMPORTANCE]
EVEN = np.ones(512, np.float32)
UNEVEN = np.tile(np.float32([0.01, 10]), 256)


def encoded(dtype, values, importance=EVEN):
    out = np.empty((len(values), dtype.row_size(values.shape[1])), np.uint8)
    encode_rows(dtype, values, out, importance)
    return out


def decoded(dtype, raw):
    out = np.empty((len(raw), raw.shape[1] // dtype.size * dtype.block), np.float32)
    decode_rows(dtype, raw, out)
    return out


def normal(rows, elements=512, seed=4):
    return np.random.default_rng(seed).normal(size=(rows, elements)).astype(np.float32)


def lost(dtype, values, importance=EVEN):
    return np.square(decoded(dtype, encoded(dtype, values, importance)) - values)


@pytest.mark.parametrize(("dtype", "share"), LOST.items(), ids=str)
def test_little_of_normal_values_is_lost(dtype, share):
    assert np.mean(lost(dtype, normal(32))) <= share


@pytest.mark.parametrize("factor", [1e-3, 1e3])
@pytest.mark.parametrize(("dtype", "share"), LOST.items(), ids=str)
def test_what_is_lost_grows_with_the_values(dtype, share, factor):
    values = normal(16) * np.float32(factor)

    assert np.mean(lost(dtype, values)) <= 1.2 * share * factor**2


@pytest.mark.parametrize("dtype", FREE, ids=str)
def test_values_alone_are_enough_for_the_finer_types(dtype):
    assert np.mean(lost(dtype, normal(32), None)) <= 1.7 * LOST[dtype]


# iq2_xxs is left out: it flips the least important sign of eight, and its first scale is misled
# by such a value where that is large. It shares this with ggml, to the last bit.
@pytest.mark.parametrize("dtype", [t for t in LOST if t is not IQ2_XXS], ids=str)
def test_importance_lowers_the_error_where_it_is_large(dtype):
    even, uneven = (lost(dtype, normal(32), given)[:, 1::2].mean() for given in (EVEN, UNEVEN))

    assert uneven < 0.95 * even


@pytest.mark.parametrize("dtype", LOST, ids=str)
def test_zeros_stay_zeros(dtype):
    out = encoded(dtype, np.zeros((2, 512), np.float32))

    np.testing.assert_array_equal(decoded(dtype, out), 0)


@pytest.mark.parametrize("dtype", [IQ2_S, IQ3_XXS, IQ3_S], ids=str)
def test_zeros_within_a_block_leave_the_rest_in_its_place(dtype):
    values = normal(16)
    values[:, 32:96] = 0

    error = lost(dtype, values)

    assert error[:, 96:].mean() <= 1.1 * LOST[dtype]
    assert error[:, 32:96].mean() <= LOST[dtype]


@pytest.mark.parametrize("value", [1, -0.3, 1e-4])
@pytest.mark.parametrize("dtype", LOST, ids=str)
def test_equal_values_lose_no_more_than_others(dtype, value):
    values = np.full((2, 512), value, np.float32)

    assert np.mean(lost(dtype, values)) <= LOST[dtype] * value**2


@pytest.mark.parametrize("dtype", LOST, ids=str)
def test_blocks_come_out_the_same_each_time_and_alone_as_among_others(dtype):
    values = normal(7)

    alone = np.concatenate([encoded(dtype, row[None], UNEVEN) for row in values])

    np.testing.assert_array_equal(alone, encoded(dtype, values, UNEVEN))


@pytest.mark.parametrize("dtype", LOST, ids=str)
def test_columns_without_importance_do_no_harm(dtype):
    importance = np.where(np.arange(512) % 5 == 0, np.float32(0), EVEN)

    assert np.isfinite(lost(dtype, normal(4), importance)).all()


@pytest.mark.parametrize("dtype", LOST, ids=str)
def test_no_importance_at_all_gives_finite_values(dtype):
    assert np.isfinite(lost(dtype, normal(4), np.zeros(512, np.float32))).all()


@pytest.mark.parametrize("wild", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("dtype", LOST, ids=str)
def test_a_wild_value_spoils_no_other_block(dtype, wild):
    values = normal(3)
    values[1, 7] = wild

    blocks, wanted = (
        encoded(dtype, given).reshape(-1, dtype.size) for given in (values, normal(3))
    )

    np.testing.assert_array_equal(np.delete(blocks, 2, 0), np.delete(wanted, 2, 0))


@pytest.mark.parametrize("dtype", sorted(NEEDS_IMPORTANCE, key=lambda t: t.id), ids=str)
def test_the_coarsest_types_are_refused_without_importance(dtype):
    with pytest.raises(tp.OptionError) as caught:
        ENCODERS[dtype](normal(1, 256), None)

    assert str(caught.value) == (
        f"cpu: {dtype.name} cannot be encoded without importance, its grid is too coarse; give "
        "the importance of each column, or choose a type such as iq2_s or q2_K"
    )


# --- grids ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RINGS)
def test_points_of_a_grid_are_found_by_their_levels(name):
    table = grid(name)

    tuples = table.tuples(table.points.T[:, :, None].astype(np.float32))

    np.testing.assert_array_equal(table.numbers[tuples[:, 0]], np.arange(table.points.shape[1]))


def test_candidates_are_the_points_of_the_nearest_rings_nearest_first():
    table = build(np.array([[0, 0], [2, 0], [2, 2], [0, 1]]), levels=3, rings=2)

    tuple_1_0, tuple_2_1 = ([table.first[code], table.count[code]] for code in (1, 5))

    assert table.candidates[slice(tuple_1_0[0], sum(tuple_1_0))].tolist() == [0, 1, 3]
    assert table.candidates[slice(tuple_2_1[0], sum(tuple_2_1))].tolist() == [1, 2, 3]


def test_the_cheapest_candidate_is_taken_and_of_equals_the_first():
    table = build(np.array([[0, 0], [2, 0], [2, 2], [0, 1]]), levels=3, rings=2)
    costs = np.zeros((2, 2, 3), np.float32)
    costs[0, :, 0] = 1

    assert table.nearest(np.array([5, 5]), costs).tolist() == [2, 1]
