"""Tensors follow NumPy: operators, swapped dimensions, and schedules that are called."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

import tensorplug as tp

Compute = Callable[..., np.ndarray]


@pytest.fixture
def compute(backend) -> Compute:
    """What a function of tensors gives for arrays of f32 and i32."""

    def run(function, *arrays):
        inputs = [tp.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
        y = tp.cont(function(*inputs))
        with tp.Scheduler([backend]).schedule(y) as schedule:
            return np.array(schedule(dict(zip(inputs, arrays, strict=True)))[y])

    return run


def numbers(*shape, low=-2.0, high=2.0, seed=0):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, 8, -1, -2])
def test_a_whole_power_is_numpys(compute: Compute, exponent: int) -> None:
    x = numbers(3, 5)

    result = compute(lambda t: t**exponent, x)

    np.testing.assert_allclose(result, x ** np.float32(exponent), rtol=1e-5)


@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_a_half_power_is_a_root(compute: Compute, exponent: float) -> None:
    x = numbers(3, 5, low=0.1)

    result = compute(lambda t: t**exponent, x)

    np.testing.assert_allclose(result, x**exponent, rtol=1e-5)


def test_a_number_is_divided_by_a_tensor(compute: Compute) -> None:
    x = numbers(2, 3, 4, low=0.5)

    np.testing.assert_allclose(compute(lambda t: 3 / t, x), 3 / x, rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 5, 3, 4)])
def test_mt_swaps_the_last_two_dimensions(compute: Compute, shape: tuple[int, ...]) -> None:
    x = numbers(*shape)

    np.testing.assert_array_equal(compute(lambda t: t.mT, x), np.swapaxes(x, -1, -2))


SHAPES = [(5,), (3, 4), (2, 3, 4), (2, 5, 3, 4)]


def axes_of(shape):
    """Each axis of a shape, counted from both ends."""
    return range(-len(shape), len(shape))


def orders_of(shape):
    return list(itertools.permutations(range(len(shape))))


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean", "argmax"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_reduction_over_an_axis_or_all_is_numpys(compute, shape, name, keepdims) -> None:
    x = numbers(*shape)
    for axis in (None, *axes_of(shape)):
        found = compute(lambda t, a=axis: getattr(tp, name)(t, a, keepdims=keepdims), x)

        np.testing.assert_allclose(
            found, getattr(np, name)(x, axis, keepdims=keepdims), rtol=1e-5, atol=1e-6, strict=False
        )
        assert found.shape == getattr(np, name)(x, axis, keepdims=keepdims).shape


@pytest.mark.parametrize("name", ["sum", "mean"])
@pytest.mark.parametrize("axes", [(0, 1), (-1, 0), (2, 1), (0, 1, 2), (0, 3), (3, 1, 0, 2)])
def test_a_reduction_over_several_axes_is_numpys(compute, name, axes) -> None:
    x = numbers(2, 5, 3, 4)

    found = compute(lambda t: getattr(tp, name)(t, axes), x)

    np.testing.assert_allclose(found, getattr(np, name)(x, axes), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_running_sums_and_orders_along_an_axis_are_numpys(compute, shape) -> None:
    x = numbers(*shape)
    for axis in axes_of(shape):
        sums = compute(lambda t, a=axis: tp.cumsum(t, a), x)
        order = compute(lambda t, a=axis: tp.argsort(t, a), x)

        np.testing.assert_allclose(sums, np.cumsum(x, axis), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(order, np.argsort(x, axis))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_permuting_is_numpys_transposition(compute, shape) -> None:
    x = numbers(*shape)
    for axes in orders_of(shape):
        found = compute(lambda t, a=axes: tp.permute(t, a), x)

        np.testing.assert_array_equal(found, np.transpose(x, axes))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_joining_and_rolling_go_along_numpys_axes(compute, shape) -> None:
    x, y = numbers(*shape), numbers(*shape, seed=1)
    for axis in axes_of(shape):
        joined = compute(lambda s, t, a=axis: tp.concat(s, t, axis=a), x, y)
        rolled = compute(lambda t, a=axis: tp.roll(t, -4, a), x)

        np.testing.assert_array_equal(joined, np.concatenate([x, y], axis))
        np.testing.assert_array_equal(rolled, np.roll(x, -4, axis))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("circular", [False, True])
def test_padding_takes_numpys_pairs(compute, shape, circular) -> None:
    x = numbers(*shape)
    pads = [(i % 2, (i + 1) % 3) for i in range(len(shape))]

    found = compute(lambda t: tp.pad(t, pads, circular=circular), x)

    np.testing.assert_array_equal(found, np.pad(x, pads, mode="wrap" if circular else "constant"))


@pytest.mark.parametrize(
    "index",
    [1, -1, np.s_[1:], np.s_[..., -2], np.s_[:, 1:3], np.s_[::2, ..., 1], np.s_[-2:, 0, :-1]],
    ids=str,
)
def test_indexing_is_numpys(compute, index) -> None:
    x = numbers(4, 3, 5)

    np.testing.assert_array_equal(compute(lambda t: t[index], x), x[index])
