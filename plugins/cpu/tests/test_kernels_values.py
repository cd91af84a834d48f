"""Values where single precision, rounding or order could go wrong, and wrong row numbers."""

import math

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.graph.tensor import leaf
from tensorplug_testing.running import run

RNG = np.random.default_rng(10)


def of(backend, function, numbers):
    """The values of an op of one source."""
    data = np.asarray(numbers, np.float32)
    x = tp.input("x", data.shape, tp.F32)
    return run(backend, function(x), {x: data})


# --- functions of one element ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "exact"),
    [
        (tp.gelu_erf, lambda x: x / 2 * math.erfc(-x / math.sqrt(2))),
        (
            tp.gelu,
            lambda x: x / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        ),
        (tp.silu, lambda x: x / (1 + math.exp(-x))),
        (tp.softplus, lambda x: math.log1p(math.exp(x))),
        (tp.elu, lambda x: x if x > 0 else math.expm1(x)),
    ],
)
def test_tails_keep_their_digits(backend, function, exact):
    x = np.linspace(-8, 8, 4001).astype(np.float32)

    found = of(backend, function, x)

    # The exponent of a tail is large itself: rounding it costs some units in the last place.
    np.testing.assert_allclose(found, [exact(float(v)) for v in x], rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("function", [tp.gelu_erf, tp.gelu, tp.gelu_quick, tp.silu, tp.sigmoid])
def test_activations_of_large_numbers_are_zero_or_the_number(backend, function):
    found = of(backend, function, [-1e30, -200, 200, 1e30])

    top = [1, 1] if function is tp.sigmoid else [200, np.float32(1e30)]
    np.testing.assert_array_equal(found, [0, 0, *top])


def test_halves_are_rounded_away_from_zero_and_nothing_else(backend):
    below = np.nextafter(np.float32(0.5), np.float32(0))
    given = [0.5, -0.5, 1.5, 2.5, -2.5, below, -below, 8388609, 1e30, np.inf, -np.inf, np.nan]

    found = of(backend, tp.round, given)

    wanted = [1, -1, 2, 3, -3, 0, 0, 8388609, 1e30, np.inf, -np.inf, np.nan]
    np.testing.assert_array_equal(found, np.array(wanted, np.float32))


def test_a_slope_of_zero_does_not_touch_infinity(backend):
    found = of(backend, lambda x: tp.leaky_relu(x, slope=0.0), [np.inf, -2.0, 3.0])

    np.testing.assert_array_equal(found, [np.inf, 0, 3])


# --- rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [tp.rms_norm, tp.norm, tp.l2_norm])
def test_a_row_of_zeros_without_epsilon_is_nan_and_no_error(backend, function):
    for rows in (1, 3):
        found = of(backend, lambda x: function(x, eps=0.0), np.zeros((rows, 4)))

        assert np.isnan(found).all()


def test_a_sum_of_many_small_numbers_keeps_them(backend):
    found = of(backend, tp.sum, np.full(3_000_000, 0.1, np.float32))

    np.testing.assert_allclose(found, [3_000_000 * float(np.float32(0.1))], rtol=1e-7)


def test_the_first_of_several_largest_is_found(backend):
    assert of(backend, lambda x: tp.argmax(x, -1), [[1, 3, 3], [2, 2, 2]]).tolist() == [1, 0]


@pytest.mark.parametrize("descending", [False, True])
def test_nan_sorts_to_the_end_either_way(backend, descending):
    found = of(backend, lambda x: tp.argsort(x, descending=descending), [[2, np.nan, 1]])

    assert found.tolist() == [[0, 2, 1] if descending else [2, 0, 1]]


@pytest.mark.parametrize("k", [1, 5, 1000])
def test_the_largest_of_a_long_row_are_found(backend, k):
    data = RNG.permutation(1000).astype(np.float32)[None]

    found = of(backend, lambda x: tp.top_k(x, k), data)

    assert sorted(data[0, found[0]].tolist()) == list(range(1000 - k, 1000))


# --- rope -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["normal", "neox"])
def test_far_positions_turn_by_exact_angles(backend, mode):
    x, at = tp.input("x", (3, 1, 64), tp.F32), tp.input("at", (3,), tp.I32)
    data, positions = RNG.normal(size=(3, 1, 64)).astype(np.float32), [0, 1000, 2_000_003]

    found = run(
        backend, tp.rope(x, at, dims=64, mode=mode), {x: data, at: np.array(positions, np.int32)}
    )

    pairs = data.reshape(3, 32, 2) if mode == "normal" else data.reshape(3, 2, 32).swapaxes(1, 2)
    angles = np.outer(positions, 10000.0 ** (-np.arange(32) / 32))
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)
    wanted = np.stack([turned.real, turned.imag], axis=-1 if mode == "normal" else 1)
    np.testing.assert_allclose(found.reshape(3, 64), wanted.reshape(3, 64), atol=1e-6)


def test_heads_with_gaps_and_odd_strides_are_turned(backend):
    x, at = tp.input("x", (3, 2, 33), tp.F32), tp.input("at", (3,), tp.I32)
    data = RNG.normal(size=x.shape).astype(np.float32)
    seen = x[:, :, ::2]
    plain = tp.input("plain", (3, 2, 17), tp.F32)
    positions = np.array([4, 5, 6], np.int32)

    found = run(backend, tp.rope(seen, at, dims=16), {x: data, at: positions})

    wanted = run(backend, tp.rope(plain, at, dims=16), {plain: data[:, :, ::2], at: positions})
    np.testing.assert_array_equal(found, wanted)


# --- rows by number -------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-2, 4, 2**31 - 1])
@pytest.mark.parametrize("dtype", [tp.F32, tp.Q8_0], ids=str)
def test_row_that_does_not_exist_is_named(backend, dtype, wrong):
    table, ids = leaf("table", (4, 32), dtype), tp.input("ids", (3,), tp.I32)
    node = tp.get_rows(table, ids, name="look up")
    stored = np.zeros((4, dtype.row_size(32)), np.uint8).view(dtype.storage)

    with pytest.raises(tp.GraphError) as caught:
        run(backend, node, {table: stored, ids: np.array([0, wrong, 1])})

    assert str(caught.value) == (
        f"{node}: ids {ids} holds {wrong} at [1], which names no row; rows are 0 to 3, and -1 "
        "stands for none"
    )


@pytest.mark.parametrize("dtype", [tp.F32, tp.F16, tp.BF16, tp.Q8_0, tp.I32], ids=str)
def test_more_rows_than_a_chunk_are_written_and_read(backend, dtype):
    table, rows = leaf("table", (900, 256), dtype), tp.input("rows", (700, 256), tp.F32)
    ids, back = tp.input("ids", (700,), tp.I64), tp.input("back", (700,), tp.I32)
    places = RNG.permutation(900)[:700]
    data = RNG.integers(-127, 128, (700, 256)).astype(np.float32)
    data[:, ::32] = 127
    node = tp.get_rows(tp.set_rows(table, rows, ids), back)
    stored = np.zeros((900, dtype.row_size(256)), np.uint8).view(dtype.storage)

    found = run(
        backend, node, {table: stored, rows: data, ids: places, back: places.astype(np.int32)}
    )

    np.testing.assert_array_equal(found, data)


# --- copies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [tp.F32, tp.F16, tp.BF16, tp.I8, tp.I32, tp.F64], ids=str)
@pytest.mark.parametrize("target", [tp.F32, tp.F16, tp.BF16, tp.I16, tp.I64, tp.F64], ids=str)
def test_small_integers_survive_every_conversion(backend, source, target):
    numbers = RNG.integers(-100, 100, (300, 700))
    whole = numbers.astype(np.float32)
    halves = (whole.view(np.uint32) >> 16).astype(np.uint16)
    x = leaf("x", (300, 700), source)

    found = run(
        backend,
        tp.cast(tp.cast(x, target), tp.F32),
        {x: (halves if source is tp.BF16 else numbers).astype(source.storage)},
    )

    np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("source", [tp.F32, tp.Q8_0], ids=str)
@pytest.mark.parametrize("target", [tp.F32, tp.F16, tp.Q8_0], ids=str)
def test_copies_change_shape_type_and_layout_at_once(backend, source, target):
    values = RNG.integers(-127, 128, (4, 6, 64)).astype(np.float32)
    values[:, :, ::32] = 127
    x, home = leaf("x", (4, 6, 64), tp.F32), leaf("home", (4, 2, 6, 32), target)
    room = tp.permute(home, (0, 2, 1, 3))
    seen = tp.permute(tp.cast(x, source), (1, 0, 2))
    zeros = np.zeros((4, 2, 6, target.row_size(32)), np.uint8).view(target.storage)

    found = run(backend, tp.cast(tp.cont(tp.cpy(seen, room)), tp.F32), {x: values, home: zeros})

    np.testing.assert_array_equal(found.reshape(-1), values.swapaxes(0, 1).reshape(-1))
