"""Tensors follow NumPy: operators, swapped dimensions, and schedules that are called."""

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
