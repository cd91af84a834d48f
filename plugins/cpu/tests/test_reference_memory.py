"""How the reference keeps values: types, blocks, views, writes, and the order of a program."""

import math

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.dtypes import MXFP4, NVFP4, Q1_0, Q2_0, Q4_1, Q5_0, Q5_1, Q8_1, Q8_K, TQ1_0, TQ2_0
from tensorplug.graph.tensor import leaf
from tensorplug_cpu import reference
from tensorplug_cpu.reference import blocks

from .leafs import f32, i32, value

# --- types ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "given", "wanted"),
    [
        ("f16", [2049.0, 2051.0], [2048.0, 2052.0]),
        ("f16", [65519.0, 65520.0, -1e30], [65504.0, math.inf, -math.inf]),
        ("f16", [2.0**-25, 3 * 2.0**-25], [0.0, 2.0**-23]),
        ("bf16", [1 + 2.0**-8, 1 + 3 * 2.0**-8], [1.0, 1 + 2.0**-6]),
        ("bf16", [1 + 2.0**-8 + 2.0**-20, 3.4e38, 2.0**-133], [1 + 2.0**-7, math.inf, 2.0**-133]),
        ("i32", [1.7, -1.7, 2.5, -0.5], [1, -1, 2, 0]),
        ("i8", [-100.9, 100.9], [-100, 100]),
    ],
)
def test_conversion_rounds_as_the_type_says(to, given, wanted):
    x = f32(given)

    found = value(tp.cast(x[0], to), x)

    assert found.tolist() == wanted


def test_results_take_the_type_of_the_first_source():
    a = leaf("a", (2,), tp.F16), np.array([1, 2048], np.float16)
    b = f32([2.0**-12, 1.5], "b")

    assert value(tp.add(a[0], b[0]), a, b).tolist() == [1, 2050]


def test_bf16_keeps_nan_and_signs():
    x = f32([math.nan, -0.0, -math.inf])

    found = value(tp.cast(x[0], tp.BF16), x)

    assert math.isnan(found[0])
    assert math.copysign(1, found[1]) == -1
    assert found[2] == -math.inf


def test_bf16_of_a_nan_whose_payload_lies_low_is_a_nan():
    x = leaf("x", (1,), tp.F32), np.array([0x7F800001], np.uint32).view(np.float32)

    assert math.isnan(value(tp.cast(x[0], tp.BF16), x)[0])


def test_bf16_is_given_and_decoded_as_the_upper_half_of_f32():
    x = leaf("x", (3,), tp.BF16), np.array([0x3F80, 0xC000, 0x7F80], np.uint16)

    assert value(tp.dup(x[0]), x).tolist() == [1, -2, math.inf]


def _half(number):
    return np.array([number], "<f2").view(np.uint8).tolist()


HAND_MADE_BLOCKS = {
    "q4_0": (
        tp.Q4_0,
        _half(0.5) + [0x0F, 0x80] + [0x88] * 14,
        {0: 3.5, 1: -4, 16: -4, 17: 0, 5: 0},
    ),
    "q8_0": (tp.Q8_0, _half(0.25) + [4, 0xFE] + [0] * 30, {0: 1, 1: -0.5, 31: 0}),
    "q8_1": (Q8_1, _half(0.25) + _half(9) + [4, 0xFE] + [0] * 30, {0: 1, 1: -0.5, 31: 0}),
    "q1_0": (Q1_0, _half(1.5) + [0b101] + [0] * 15, {0: 1.5, 1: -1.5, 2: 1.5, 127: -1.5}),
    "q2_0": (
        Q2_0,
        _half(1.5) + [0b11100100] + [0x55] * 15,
        {0: -1.5, 1: 0, 2: 1.5, 3: 3, 63: 0},
    ),
    "q8_K": (
        Q8_K,
        np.array([0.25], "<f4").view(np.uint8).tolist() + [4, 0xFE] + [0] * 286,
        {0: 1, 1: -0.5, 255: 0},
    ),
    "mxfp4": (MXFP4, [128] + [0x21, 0xF9] + [0] * 14, {0: 1, 16: 2, 1: -1, 17: -12, 2: 0}),
}


@pytest.mark.parametrize("kind", sorted(HAND_MADE_BLOCKS))
def test_block_made_by_hand_decodes(kind):
    dtype, stored, wanted = HAND_MADE_BLOCKS[kind]
    x = leaf("x", (1, dtype.block), dtype), np.array([stored], np.uint8)
    ids = i32([0])

    found = value(tp.get_rows(x[0], ids[0]), x, ids)[0]

    assert {i: float(found[i]) for i in wanted} == wanted


STEPS = {
    tp.Q4_0: 1 / 8,
    Q4_1: 2 / 15,
    Q5_0: 1 / 16,
    Q5_1: 2 / 31,
    tp.Q8_0: 1 / 127,
    TQ1_0: 1,
    TQ2_0: 1,
    MXFP4: 1 / 2,
    NVFP4: 1 / 3,
    Q8_1: 1 / 127,
    Q8_K: 1 / 127,
    Q2_0: 1,
}
"""Distance of neighbouring values of a block whose values lie between -1 and 1.

Only of types whose encoders round each value; others search for what is best on the whole.
"""


@pytest.mark.parametrize("dtype", STEPS, ids=repr)
def test_encoded_values_are_the_nearest_that_the_block_holds(dtype):
    values = np.random.default_rng(1).uniform(-1, 1, (8, 256)).astype(np.float32)
    values[:, ::32] = 1.0
    values[:, 1::32] = -1.0
    x = f32(values)

    error = np.abs(value(tp.cast(x[0], dtype), x) - values)

    # Blocks with one scale for both signs reach one end only: the other is a step short.
    assert error.max() <= STEPS[dtype] * 1.01
    assert np.mean(error) <= STEPS[dtype] * 0.51


def test_encoding_to_a_type_without_an_encoder_is_refused(monkeypatch):
    monkeypatch.setattr(blocks, "ENCODED", {tp.Q8_0, tp.Q4_0})
    x = f32(np.ones((1, 256)))

    with pytest.raises(tp.Unsupported) as caught:
        value(tp.cast(x[0], tp.Q4_K), x)

    assert str(caught.value) == ("reference: no encoder for q4_K; there are some for q4_0, q8_0")


# --- memory ---------------------------------------------------------------------------------


def test_views_read_the_memory_of_their_root():
    x = f32(np.arange(24).reshape(2, 3, 4))
    data = x[1]

    assert np.array_equal(value(x[0][1, ::2, 1:3], x), data[1, ::2, 1:3])
    assert np.array_equal(value(x[0].mT, x), data.swapaxes(1, 2))
    assert np.array_equal(value(x[0].reshape(4, 6), x), data.reshape(4, 6))
    assert np.array_equal(value(tp.cont(x[0].mT, (8, 3)), x), data.swapaxes(1, 2).reshape(8, 3))


def test_permute_orders_axes_as_numpy_does():
    x = f32(np.arange(24).reshape(2, 3, 4))

    found = value(tp.permute(x[0], (2, 0, 1)), x)

    # ggml order: sizes (4, 3, 2) go to places 2, 0, 1, which are sizes (3, 2, 4).
    assert found.shape == (4, 2, 3)
    assert np.array_equal(found, x[1].transpose(2, 0, 1))


def test_cpy_writes_into_a_view_and_leaves_the_rest():
    x, table = f32([[1, 2], [3, 4]], "x"), f32(np.zeros((3, 4)), "table")
    window = table[0][1:, 1:3]
    written = tp.cpy(x[0], window)
    whole = tp.dup(table[0])

    found = reference.compute(tp.Graph([whole], effects=[written]), dict([x, table]))

    assert found[whole].tolist() == [[0, 0, 0, 0], [0, 1, 2, 0], [0, 3, 4, 0]]
    assert found[written].tolist() == [[1, 2], [3, 4]]


def test_reads_and_writes_keep_program_order():
    table, rows, ids = f32(np.zeros((3, 2)), "table"), f32([[5, 6]], "rows"), i32([1])
    before = tp.dup(table[0])
    written = tp.set_rows(table[0], rows[0], ids[0])
    after = tp.dup(table[0])

    found = reference.compute([before, written, after], dict([table, rows, ids]))

    assert found[before].tolist() == [[0, 0], [0, 0], [0, 0]]
    assert found[after].tolist() == [[0, 0], [5, 6], [0, 0]]
    assert found[written].tolist() == found[after].tolist()


def test_set_rows_repeats_ids_over_further_dimensions():
    table = f32(np.zeros((1, 4, 3, 1)), "table")
    rows = f32(np.arange(1, 9).reshape(1, 4, 2, 1), "rows")
    ids = leaf("ids", (2, 2), tp.I64), np.array([[0, 1], [2, 0]])

    found = value(tp.set_rows(table[0], rows[0], ids[0]), table, rows, ids)

    assert found[0, :, :, 0].tolist() == [[1, 2, 0], [4, 0, 3], [5, 6, 0], [8, 0, 7]]


def test_set_rows_leaves_the_bytes_of_other_blocks_alone():
    stored = np.random.default_rng(3).integers(0, 120, (4, 34), np.uint8)
    table, rows, ids = leaf("table", (4, 32), tp.Q8_0), f32(np.ones((1, 32)), "rows"), i32([2])
    node = tp.set_rows(table, rows[0], ids[0])

    memory = reference.execute(tp.Graph(node), dict([(table, stored), rows, ids]))

    found = memory.window(table)[0, 0]
    assert np.array_equal(found[[0, 1, 3]], stored[[0, 1, 3]])
    assert found[2].tolist() == [*_half(1 / 127), *[127] * 32]


def test_get_rows_takes_each_batch_from_its_own_table():
    table, ids = f32([[[1], [2]], [[10], [20]]], "table"), i32([[1, 0, 1], [0, 0, 1]])

    found = value(tp.get_rows(table[0], ids[0]), table, ids)

    assert found[..., 0].tolist() == [[2, 1, 2], [10, 10, 20]]


@pytest.mark.parametrize("row", [-2, 3])
def test_row_numbers_outside_the_table_are_refused(row):
    table, ids = f32(np.zeros((3, 2)), "table"), i32([0, row])
    node = tp.get_rows(table[0], ids[0], name="rows")

    with pytest.raises(tp.GraphError) as caught:
        value(node, table, ids)

    assert str(caught.value) == (
        f"reference: <Tensor 'rows', get_rows, f32[2, 2]>: id {row} names no row; rows are 0 to 2, "
        "and -1 stands for none"
    )


def test_op_in_place_changes_its_source():
    x = f32([1.0, 4.0])
    changed = tp.ops.in_place(tp.sqrt(x[0]))
    later = tp.scale(x[0], 10.0)

    found = reference.compute([changed, later], dict([x]))

    assert found[changed].tolist() == [1, 2]
    assert found[later].tolist() == [10, 20]


def test_results_are_what_memory_holds_after_the_run():
    x = f32([1.0, 4.0])
    doubled = tp.scale(x[0], 2.0)
    changed = tp.ops.in_place(tp.sqrt(doubled))

    found = reference.compute([doubled, changed], dict([x]))

    assert found[doubled].tolist() == found[changed].tolist() == [math.sqrt(2), math.sqrt(8)]


def test_joins_and_tiles_go_along_ggml_dimensions():
    a, b = f32([[1, 2], [3, 4]], "a"), f32([[5, 6], [7, 8]], "b")

    assert value(tp.concat(a[0], b[0], axis=-1), a, b).tolist() == [[1, 2, 5, 6], [3, 4, 7, 8]]
    assert value(tp.concat(a[0], b[0], axis=0), a, b).tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert value(tp.repeat(a[0], (2, 4)), a).tolist() == [[1, 2, 1, 2], [3, 4, 3, 4]]


def test_acc_adds_to_a_window_and_set_replaces_it():
    a, part = f32(np.ones((3, 4)), "a"), f32([[10, 20], [30, 40]], "part")

    added = value(tp.acc(a[0], part[0], offset=20), a, part)
    replaced = value(tp.set(a[0], part[0], offset=20), a, part)

    assert added.tolist() == [[1, 1, 1, 1], [1, 11, 21, 1], [1, 31, 41, 1]]
    assert replaced.tolist() == [[1, 1, 1, 1], [1, 10, 20, 1], [1, 30, 40, 1]]


def test_windows_step_through_all_four_dimensions():
    a, part = f32(np.zeros(24), "a"), f32(np.arange(1, 9).reshape(2, 2, 2, 1), "part")

    found = value(tp.set(a[0], part[0], strides=(40, 12, 4, 4), offset=8), a, part)

    assert found.tolist() == [0, 0, 1, 2, 0, 3, 4, 0, 0, 0, 0, 0, 5, 6, 0, 7, 8, *[0] * 7]


def test_leaf_without_a_value_is_named():
    x = leaf("x", (2,), tp.F32)

    with pytest.raises(tp.GraphError) as caught:
        reference.compute(tp.neg(x))

    assert str(caught.value) == (
        "reference: no value for <Tensor 'x', none, f32[2]>; give one in leaf_values"
    )
