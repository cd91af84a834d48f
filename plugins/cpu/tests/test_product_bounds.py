"""Products are judged element by element, by what the stream declares to round."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Rounding
from tensorplug_cpu.reference import compute
from tensorplug_testing.cases.bounds import product_bound
from tensorplug_testing.cases.case import BYTES, Arg, build, integers
from tensorplug_testing.cases.compare import difference
from tensorplug_testing.cases.matmul import product, product_of_experts

RANDOM = product(Arg((512, 7, 2), tp.Q8_0), Arg((512, 5, 4)))
BYTEWISE = product(Arg((512, 7), tp.Q8_0), Arg((512, 5), data=BYTES))
EXPERTS = product_of_experts(
    Arg((512, 7, 3), tp.Q8_0), Arg((512, 1, 5)), Arg((2, 5), tp.I32, data=integers(0, 3))
)


def in_bytes(x, group):
    """Numbers rounded to bytes with a scale for each group of a row."""
    groups = x.reshape(*x.shape[:-1], -1, group)
    scale = np.abs(groups).max(-1, keepdims=True) / 127
    return (np.round(groups / scale) * scale).reshape(x.shape)


def in_halves(x):
    """Numbers rounded to eight bits of mantissa, as bf16 has them."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.round(mantissa * 256) / 256, exponent)


def with_x_changed(case, change):
    """The exact product, and the one of an `x` that is changed first."""
    built = build(case)
    exact = compute(built.node, built.stored)[built.node]
    (x,) = [root for root in built.stored if root.dtype is tp.F32]
    stored = {**built.stored, x: change(built.stored[x]).astype(np.float32)}
    return built, compute(built.node, stored)[built.node], exact


@pytest.mark.parametrize("case", [RANDOM, EXPERTS], ids=lambda case: case.op)
@pytest.mark.parametrize(
    ("change", "declared", "passes"),
    [
        (np.array, Rounding.NONE, True),
        (in_halves, Rounding.NONE, False),
        (in_halves, Rounding.HALVES, True),
        (lambda x: in_bytes(x, 32), Rounding.NONE, False),
        (lambda x: in_bytes(x, 16), Rounding.BYTES, True),
        (lambda x: in_bytes(x, 32), Rounding.BYTES, True),
        (lambda x: in_bytes(x, 256), Rounding.BYTES, True),
    ],
)
def test_rounding_passes_where_it_is_declared(case, change, declared, passes):
    built, got, exact = with_x_changed(case, change)

    assert (difference(case, built, got, exact, declared) == "") == passes


@pytest.mark.parametrize("group", [16, 32, 128, 256])
def test_bytes_hold_the_x_of_cases_for_devices_that_round(group):
    _, got, exact = with_x_changed(BYTEWISE, lambda x: in_bytes(x, group))

    assert np.array_equal(got, exact)


def test_block_that_is_a_percent_off_is_found_whatever_is_rounded():
    built, got, exact = with_x_changed(BYTEWISE, np.array)
    last = slice(-32, None)
    weights, values = (compute(tp.cast(root, "f32"), built.stored) for root in built.stored)
    (weights,), (values,) = weights.values(), values.values()

    got = got.copy()
    got[:, -1] += 0.01 * values[:, last] @ weights[-1, last]

    assert "5 of 35 differ" in difference(BYTEWISE, built, got, exact, Rounding.BYTES)


def test_single_element_of_many_that_is_a_percent_off_is_found():
    built, got, exact = with_x_changed(RANDOM, np.array)
    at = np.unravel_index(np.abs(exact).argmax(), exact.shape)

    got = got.copy()
    got[at] *= 1.01

    assert "1 of 140 differ" in difference(RANDOM, built, got, exact)


def test_problem_names_the_distance_that_is_allowed():
    built, got, exact = with_x_changed(RANDOM, np.array)
    bound = product_bound(built, Rounding.NONE, representable=False)

    problem = difference(RANDOM, built, got + 1, exact)

    assert problem.startswith(f"farther than {bound[0, 0, 0]:.3g}; 140 of 140 differ")


@pytest.mark.parametrize(("other", "shared"), [(1, True), (2, False), (3, False)])
def test_matrices_of_x_that_share_weights_have_bounds_in_proportion(other, shared):
    bound = product_bound(build(RANDOM), Rounding.NONE, representable=False)

    ratios = bound[0] / bound[other]

    assert np.allclose(ratios, ratios[:, :1]) == shared
