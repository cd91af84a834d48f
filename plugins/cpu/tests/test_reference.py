"""The reference against values worked out by hand, closed forms, and the math module."""

import math

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.ops.unary import UNARY
from tensorplug_cpu import reference

from .leafs import f32, i32, value

# --- the table ------------------------------------------------------------------------------


def test_every_op_that_computes_has_a_reference_function():
    computing = {name for name, op in tp.OPS.items() if not op.is_view}

    assert set(reference.REFERENCE) == computing


def test_an_op_without_a_reference_is_refused_by_name():
    x, data = f32([1.0])
    node = tp.neg(x)
    foreign = tp.Tensor(node.dtype, node.ne, node.nb, node.rank, "acme.foo", node.operands)

    with pytest.raises(tp.Unsupported) as caught:
        value(foreign, (x, data))

    assert str(caught.value) == (
        "reference: no function for op 'acme.foo'; its register_op() gives none"
    )


# --- functions of one element ---------------------------------------------------------------

POINTS = (-150.0, -20.5, -3.0, -1.0, -0.25, 0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 20.5, 150.0)


def _sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def _normal_cdf(x):
    return (1 + math.erf(x / math.sqrt(2))) / 2


SCALARS = {
    "sqr": lambda x: x * x,
    "sin": math.sin,
    "cos": math.cos,
    "abs": math.fabs,
    "sgn": lambda x: (x > 0) - (x < 0),
    "neg": lambda x: 0 - x,
    "step": lambda x: float(x > 0),
    "tanh": math.tanh,
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "relu": lambda x: x if x > 0 else 0.0,
    "sigmoid": _sigmoid,
    "gelu": lambda x: x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)),
    "gelu_quick": lambda x: x * _sigmoid(1.702 * x),
    "gelu_erf": lambda x: x * _normal_cdf(x),
    "silu": lambda x: x * _sigmoid(x),
    "hardswish": lambda x: 0.0 if x < -3 else x if x > 3 else x * (x + 3) / 6,
    "hardsigmoid": lambda x: 0.0 if x < -3 else 1.0 if x > 3 else (x + 3) / 6,
    "exp": math.exp,
    "expm1": math.expm1,
    "softplus": lambda x: x if x > 20 else math.log(1 + math.exp(x)),
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
}


def test_every_function_of_one_element_has_a_formula_or_a_test_here():
    assert UNARY.keys() - SCALARS.keys() == {"sqrt", "log", "round"}


@pytest.mark.parametrize("op", sorted(SCALARS))
def test_unary_function_equals_its_formula_in_the_math_module(op):
    points = POINTS[:-1] if op in ("exp", "expm1") else POINTS
    x, data = f32(points)

    found = value(tp.unary(op, x), (x, data))

    assert found == pytest.approx([SCALARS[op](p) for p in points], rel=1e-12, abs=1e-14)


@pytest.mark.parametrize(("op", "exact"), [("sqrt", math.sqrt), ("log", math.log)])
def test_unary_function_of_positive_numbers_equals_the_math_module(op, exact):
    points = [1e-30, 0.25, 1.0, 2.0, 150.0, 1e30]
    x, data = f32(points)

    found = value(tp.unary(op, x), (x, data))

    assert found == pytest.approx([exact(float(p)) for p in data], rel=1e-15)


def test_round_takes_halves_away_from_zero():
    x, data = f32([0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, -0.49999997, 8388609.0, 1e30, -0.0])

    found = value(tp.round(x), (x, data))

    assert found.tolist() == [1, -1, 2, 3, -3, 0, 0, 8388609, float(np.float32(1e30)), 0]


def test_softplus_is_the_identity_only_above_twenty():
    x, data = f32([20.0, np.nextafter(np.float32(20), np.float32(21))])

    found = value(tp.softplus(x), (x, data))

    assert found.tolist() == [math.log1p(math.exp(20)), float(data[1])]


def test_functions_have_their_limits_at_infinity():
    x, data = f32([-math.inf, math.inf])
    wanted = {
        "tanh": [-1, 1],
        "sigmoid": [0, 1],
        "elu": [-1, math.inf],
        "exp": [0, math.inf],
        "expm1": [-1, math.inf],
        "softplus": [0, math.inf],
        "hardsigmoid": [0, 1],
        "sgn": [-1, 1],
    }

    found = {op: value(tp.unary(op, x), (x, data)).tolist() for op in wanted}

    assert found == wanted


def test_xielu_has_a_quadratic_and_an_exponential_side():
    x, data = f32([2.0, 0.0, -2.0])
    settings = {"alpha_n": 0.8, "alpha_p": 0.7, "beta": 0.5, "eps": -1e-6}

    found = value(tp.xielu(x, **settings), (x, data))

    at_zero = math.expm1(-1e-6) * 0.8
    below = (math.expm1(-2) + 2) * 0.8 - 1
    assert found == pytest.approx([0.7 * 4 + 1, at_zero, below], rel=1e-12)


def test_results_of_f32_keep_the_digits_of_float64():
    x, data = f32([1.0])

    assert value(tp.log(tp.exp(tp.exp(x))), (x, data)).tolist() == [math.e]


def test_f32_results_outside_the_range_of_f32_become_infinite():
    x, data = f32([88.0, 89.0, 3.4e38])
    halves = tp.scale(tp.exp(x), 0.5)

    assert np.isfinite(value(halves, (x, data))).tolist() == [True, False, False]


# --- arithmetic -----------------------------------------------------------------------------


def test_smaller_operand_is_tiled_over_the_larger():
    a, b = f32([[1, 2, 3, 4], [5, 6, 7, 8]], "a"), f32([10, 20], "b")

    found = value(tp.add(a[0], b[0]), a, b)

    assert found.tolist() == [[11, 22, 13, 24], [15, 26, 17, 28]]


@pytest.mark.parametrize(
    ("op", "wanted"), [("add", [3, 2]), ("sub", [-1, 10]), ("mul", [2, -24]), ("div", [0.5, -1.5])]
)
def test_arithmetic_takes_its_operands_in_order(op, wanted):
    a, b = f32([1, 6], "a"), f32([2, -4], "b")

    found = value(tp.apply(tp.OPS[op], a[0], b[0]), a, b)

    assert found.tolist() == wanted


def test_division_by_zero_gives_infinity_and_nan():
    a, b = f32([1, -1, 0], "a"), f32([0, 0, 0], "b")

    found = value(tp.div(a[0], b[0]), a, b)

    assert found[:2].tolist() == [math.inf, -math.inf]
    assert math.isnan(found[2])


def test_add_id_adds_the_named_row():
    a = f32(np.zeros((2, 3, 2)), "a")
    b = f32([[1, 2], [3, 4], [5, 6]], "b")
    ids = i32([[0, 1, 2], [2, 2, 0]])

    found = value(tp.add_id(a[0], b[0], ids[0]), a, b, ids)

    assert found.tolist() == [[[1, 2], [3, 4], [5, 6]], [[5, 6], [5, 6], [1, 2]]]


def test_ops_with_constants_follow_their_formulas():
    x = f32([-4.0, 0.0, 4.0])
    nodes = {
        "scale": tp.scale(x[0], 0.5, bias=1.0),
        "clamp": tp.clamp(x[0], -1.0, 2.0),
        "leaky_relu": tp.leaky_relu(x[0], slope=0.25),
        "fill": tp.fill(x[0], 7.0),
    }

    found = {name: value(node, x).tolist() for name, node in nodes.items()}

    assert found == {
        "scale": [-1, 1, 3],
        "clamp": [-1, 0, 2],
        "leaky_relu": [-1, 0, 4],
        "fill": [7, 7, 7],
    }


def test_arange_stops_before_its_end():
    assert value(tp.arange(0, 1, 0.25)).tolist() == [0, 0.25, 0.5, 0.75]
    assert value(tp.arange(5, 0, -2)).tolist() == [5, 3, 1]


@pytest.mark.parametrize(
    ("op", "activation"),
    [
        ("reglu", "relu"),
        ("geglu", "gelu"),
        ("swiglu", "silu"),
        ("geglu_erf", "gelu_erf"),
        ("geglu_quick", "gelu_quick"),
    ],
)
def test_glu_multiplies_the_activated_first_half_with_the_second(op, activation):
    x = f32([[-1.0, 2.0, 3.0, 0.5]])
    a, b = f32([[-1.0, 2.0]], "a"), f32([[3.0, 0.5]], "b")
    wanted = [[SCALARS[activation](-1.0) * 3, SCALARS[activation](2.0) * 0.5]]

    assert value(tp.glu(op, x[0]), x) == pytest.approx(np.array(wanted), rel=1e-12)
    assert value(tp.glu(op, a[0], b[0]), a, b) == pytest.approx(np.array(wanted), rel=1e-12)


def test_swapped_glu_activates_the_second_half():
    x = f32([[3.0, 0.5, -1.0, 2.0]])

    assert value(tp.reglu(x[0], swapped=True), x).tolist() == [[0, 1]]


def test_swiglu_oai_limits_both_halves_and_adds_one():
    x = f32([9.0, -9.0, 9.0, -9.0])

    found = value(tp.swiglu_oai(x[0], alpha=1.5, limit=7.0), x)

    assert found == pytest.approx([7 * _sigmoid(10.5) * 8, -9 * _sigmoid(-13.5) * -6], rel=1e-12)


# --- reductions and orders ------------------------------------------------------------------


def test_reductions_work_along_rows():
    x = f32([[1, 2, 3], [4, 5, 9]])

    assert value(tp.sum(x[0]), x).tolist() == 24
    assert value(tp.sum_rows(x[0]), x).tolist() == [[6], [18]]
    assert value(tp.mean(x[0], -1, keepdims=True), x).tolist() == [[2], [6]]
    assert value(tp.cumsum(x[0]), x).tolist() == [[1, 3, 6], [4, 9, 18]]


def test_orders_of_rows():
    x = f32([[3, 1, 4, 1.5], [2, 7, 1, 7]])

    assert value(tp.argmax(x[0], -1), x).tolist() == [2, 1]
    assert value(tp.argsort(x[0]), x)[0].tolist() == [1, 3, 0, 2]
    assert value(tp.argsort(x[0], descending=True), x)[0].tolist() == [2, 0, 3, 1]
    assert set(value(tp.top_k(x[0], 2), x)[1].tolist()) == {1, 3}


# --- norms ----------------------------------------------------------------------------------


def test_norms_of_one_row():
    x = f32([[1.0, 2.0, 3.0, 4.0]])
    row = np.array([[1.0, 2.0, 3.0, 4.0]])

    assert value(tp.norm(x[0], eps=0.75), x) == pytest.approx((row - 2.5) / math.sqrt(2))
    assert value(tp.rms_norm(x[0], eps=1.5), x) == pytest.approx(row / 3)
    assert value(tp.l2_norm(x[0], eps=1e-9), x) == pytest.approx(row / math.sqrt(30))
    assert value(tp.l2_norm(x[0], eps=10.0), x) == pytest.approx(row / 10)


def test_group_norm_gives_the_last_group_what_is_left():
    x = f32([[[1.0, 3.0]], [[5.0, 7.0]], [[2.0, 6.0]]])

    found = value(tp.group_norm(x[0], 2, eps=0.0), x)

    assert found[:2].reshape(-1) == pytest.approx(np.array([-3, -1, 1, 3]) / math.sqrt(5))
    assert found[2].tolist() == [[-1, 1]]


# --- softmax --------------------------------------------------------------------------------


def test_soft_max_of_logarithms_are_shares():
    x = f32([math.log(1), math.log(2), math.log(5)])

    assert value(tp.soft_max(x[0]), x) == pytest.approx([1 / 8, 2 / 8, 5 / 8], rel=1e-6)


def test_soft_max_scales_before_it_masks():
    x, mask = f32([[2.0, 4.0, 6.0]], "x"), f32([[1.0, 0.0, -math.inf]], "mask")

    found = value(tp.soft_max(x[0], mask[0], scale=0.5), x, mask)

    assert found.tolist() == [[0.5, 0.5, 0.0]]


def test_soft_max_repeats_the_mask_in_turn():
    x = f32(np.zeros((1, 4, 1, 2)))
    mask = f32([[[[0, 0]], [[0, -math.inf]]]], "mask")

    found = value(tp.soft_max(x[0], mask[0]), x, mask)

    assert found[0, :, 0, 0].tolist() == [0.5, 1, 0.5, 1]


def test_sinks_take_part_in_the_divisor_only():
    x, sinks = f32(np.zeros((2, 1, 2)), "x"), f32([math.log(2), 1000.0], "sinks")

    found = value(tp.soft_max(x[0], None, sinks[0]), x, sinks)

    assert found[0, 0] == pytest.approx([0.25, 0.25], rel=1e-6)
    assert found[1, 0].tolist() == [0, 0]


def test_row_that_sees_nothing_but_a_sink_is_zero():
    x, sinks = f32([[[-math.inf, -math.inf]]], "x"), f32([0.0], "sinks")

    assert value(tp.soft_max(x[0], None, sinks[0]), x, sinks).tolist() == [[[0, 0]]]


def test_soft_max_takes_the_first_rows_of_a_longer_mask():
    x, mask = f32(np.zeros((1, 2)), "x"), f32([[0.0, -math.inf], [-math.inf, 0.0]], "mask")

    assert value(tp.soft_max(x[0], mask[0]), x, mask).tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("heads", "wanted"),
    [
        (1, [2**-8]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (8, [2**-n for n in range(1, 9)]),
        (12, [*[2**-n for n in range(1, 9)], 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_slopes_of_heads_are_those_of_the_alibi_paper(heads, wanted):
    """The differences of log probabilities are the slopes when the mask is (0, 1)."""
    x, mask = f32(np.zeros((heads, 1, 2)), "x"), f32([[0.0, 1.0]], "mask")

    found = value(tp.soft_max(x[0], mask[0], max_bias=8.0), x, mask)

    assert np.log(found[:, 0, 1] / found[:, 0, 0]) == pytest.approx(wanted, rel=1e-9)


def test_diagonal_mask_starts_after_the_past():
    x = f32(np.ones((2, 4)))

    found = value(tp.diag_mask_inf(x[0], n_past=1), x)

    assert found.tolist() == [[1, 1, -math.inf, -math.inf], [1, 1, 1, -math.inf]]
