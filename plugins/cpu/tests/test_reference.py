"""The reference against values worked out by hand, closed forms, and the math module."""

import cmath
import math

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.ops.rope import MODES
from tensorplug_cpu import reference

from .leafs import f32, i32, random, value

# --- the table ------------------------------------------------------------------------------


def test_every_op_that_computes_has_a_reference_function():
    computing = {name for name, op in tp.OPS.items() if not op.is_view}

    assert set(reference.REFERENCE) == computing


def test_an_op_of_another_distribution_is_refused_by_name():
    x, data = f32([1.0])
    node = tp.neg(x)
    foreign = tp.Tensor(node.dtype, node.ne, node.nb, node.rank, "acme.foo", node.operands)

    with pytest.raises(tp.Unsupported) as caught:
        value(foreign, (x, data))

    assert str(caught.value) == "reference: no function for op 'acme.foo'; it is not one of ours"


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

    assert value(tp.sum(x[0]), x).tolist() == [24]
    assert value(tp.sum_rows(x[0]), x).tolist() == [[6], [18]]
    assert value(tp.mean(x[0]), x).tolist() == [[2], [6]]
    assert value(tp.cumsum(x[0]), x).tolist() == [[1, 3, 6], [4, 9, 18]]


def test_orders_of_rows():
    x = f32([[3, 1, 4, 1.5], [2, 7, 1, 7]])

    assert value(tp.argmax(x[0]), x).tolist() == [2, 1]
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


# --- rope -----------------------------------------------------------------------------------


def _turned(pair, angle, length=1.0):
    turned = complex(*pair) * cmath.rect(length, angle)
    return [turned.real, turned.imag]


def _rope(x, positions, factors=None, **params):
    """Rope of one head: `x` [tokens, size]."""
    head, ids = f32(x[:, None, :]), i32(positions)
    extra = [] if factors is None else [f32(factors, "factors")]
    node = tp.rope(head[0], ids[0], extra[0][0] if extra else None, **params)
    return value(node, head, ids, *extra)[:, 0, :]


def test_rope_turns_neighbours_like_complex_numbers():
    x = random((3, 6))
    positions = [0, 1, 7]

    found = _rope(x, positions, dims=6, base=100.0)

    wanted = [
        [_turned(row[2 * i : 2 * i + 2], p * 100.0 ** (-i / 3)) for i in range(3)]
        for row, p in zip(x.astype(float), positions, strict=True)
    ]
    assert found == pytest.approx(np.reshape(wanted, (3, 6)), rel=1e-12)


def test_rope_neox_turns_halves_where_normal_turns_neighbours():
    x = random((2, 8))
    paired = x.reshape(2, 2, 4).swapaxes(1, 2).reshape(2, 8)

    neox = _rope(x, [3, 5], dims=8, mode="neox")
    normal = _rope(paired, [3, 5], dims=8)

    assert np.array_equal(neox.reshape(2, 2, 4).swapaxes(1, 2).reshape(2, 8), normal)


@pytest.mark.parametrize("mode", ["normal", "neox"])
def test_rope_leaves_what_lies_past_its_dims(mode):
    x = random((2, 8))

    found = _rope(x, [3, 5], dims=4, mode=mode)

    assert np.array_equal(found[:, 4:], x[:, 4:])
    assert found[:, :4] == pytest.approx(_rope(x[:, :4], [3, 5], dims=4, mode=mode))


def test_rope_factors_divide_and_scale_multiplies_the_angle():
    x = random((1, 4))

    found = _rope(x, [6], [2.0, 3.0], dims=4, base=16.0, scale=0.5, attn_factor=2.0)

    row = x[0].astype(float)
    wanted = _turned(row[:2], 6 * 0.5 / 2, 2.0) + _turned(row[2:], 6 * 0.5 / 4 / 3, 2.0)
    assert found[0] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("mode", ["mrope", "imrope"])
def test_rope_with_equal_positions_of_all_kinds_is_neox(mode):
    x = random((2, 12))

    found = _rope(x, [4, 9] * 4, dims=12, mode=mode, sections=(2, 1, 1, 0))

    assert np.array_equal(found, _rope(x, [4, 9], dims=12, mode="neox"))


def _angles_of_pairs(mode, sections, dims, size):
    """Angles at which pairs of ones stand after a turn; time, height, width, other = 1, 2, 3, 4.

    The base is so close to 1 that all powers turn alike.
    """
    x = np.zeros((1, size), np.float32)
    x[:, : size // 2] = 1
    params = {"dims": dims, "mode": mode, "sections": sections, "base": 1 + 1e-12}
    y = _rope(x, [1, 2, 3, 4], scale=0.1, **params)[0]
    return np.round(10 * np.arctan2(y[size // 2 :], y[: size // 2]), 6).tolist()


@pytest.mark.parametrize(
    ("mode", "sections", "dims", "wanted"),
    [
        ("mrope", (2, 3, 1, 2), 16, [1, 1, 2, 2, 2, 3, 4, 4]),
        ("mrope", (1, 1, 1, 1), 16, [1, 2, 3, 4, 1, 2, 3, 4]),
        ("imrope", (3, 3, 2, 0), 16, [1, 2, 3, 1, 2, 3, 1, 2]),
        ("imrope", (2, 1, 2, 3), 16, [1, 2, 3, 1, 4, 3, 4, 4]),
        ("vision", (4, 4, 0, 0), 8, [1, 1, 1, 1, 2, 2, 2, 2]),
        ("vision", (2, 2, 0, 0), 8, [1, 1, 2, 2, 1, 1, 2, 2]),
    ],
)
def test_rope_sections_take_their_kinds_of_position(mode, sections, dims, wanted):
    assert _angles_of_pairs(mode, sections, dims, size=16) == wanted


def test_rope_vision_starts_each_section_with_the_fastest_turn():
    x = np.repeat([1.0, 0.0], 4)[None]

    y = _rope(x, [1, 1, 0, 0], dims=4, mode="vision", sections=(2, 2, 0, 0), base=16.0)[0]

    assert np.arctan2(y[4:], y[:4]) == pytest.approx([1, 1 / 4, 1, 1 / 4], rel=1e-12)


@pytest.mark.parametrize("ext_factor", [1.0, 0.4])
def test_rope_yarn_scales_slow_pairs_and_keeps_fast_ones(ext_factor):
    """With base 10000 and 64 dims, pair i turns 512 / (2 pi 10000**(i/32)) times in the context."""
    x = np.tile([1.0, 0.0], 32)[None]
    params = {"dims": 64, "scale": 0.25, "ext_factor": ext_factor, "original_context": 512}
    turns = [512 / (2 * math.pi) * 10000 ** (-i / 32) for i in range(32)]
    first = max(i for i in range(32) if turns[i] >= 32)
    last = min(i for i in range(32) if turns[i] <= 1)

    y = _rope(x, [1], **params)[0]

    own = np.array([10000 ** (-i / 32) for i in range(32)])
    share = 1 - ext_factor * (1 - np.clip((np.arange(32) - first) / (last - first), 0, 1))
    angles = np.arctan2(y[1::2], y[::2])
    assert angles == pytest.approx(own * (1 - share) + own / 4 * share, rel=1e-9)
    assert np.hypot(y[1::2], y[::2]) == pytest.approx(np.full(32, 1 + 0.1 * math.log(4)))


@pytest.mark.parametrize("mode", MODES)
def test_rope_at_position_zero_changes_nothing(mode):
    x = random((2, 8))
    positions = [0] * (2 if mode in MODES[:2] else 8)

    found = _rope(x, positions, dims=4, mode=mode, sections=(1, 1, 1, 1))

    assert np.array_equal(found, x)


# --- products -------------------------------------------------------------------------------


def test_mul_mat_is_x_times_w_transposed():
    w, x = f32([[1, 2, 3], [4, 5, 6]], "w"), f32([[1, 0, 0], [1, 1, 1]], "x")

    assert value(tp.mul_mat(w[0], x[0]), w, x).tolist() == [[1, 4], [6, 15]]


def test_mul_mat_shares_weights_between_neighbours():
    w, x = f32([[[1]], [[10]]], "w"), f32([[[1]], [[2]], [[3]], [[4]]], "x")

    assert value(tp.mul_mat(w[0], x[0]), w, x).reshape(-1).tolist() == [1, 2, 30, 40]


def test_mul_mat_id_takes_the_named_experts():
    w = f32([[[1, 0]], [[0, 1]], [[1, 1]]], "w")
    x = f32([[[3, 5]], [[7, 9]]], "x")
    ids = i32([[0, 1], [2, 0]])

    found = value(tp.mul_mat_id(w[0], x[0], ids[0]), w, x, ids)

    assert found[..., 0].tolist() == [[3, 5], [16, 7]]


def test_mul_mat_id_gives_slots_their_own_rows_in_turn():
    w = f32([[[1]], [[10]]], "w")
    x = f32([[[2], [3]]], "x")
    ids = i32([[0, 1, 1, 0]])

    found = value(tp.mul_mat_id(w[0], x[0], ids[0]), w, x, ids)

    assert found[..., 0].tolist() == [[2, 30, 20, 3]]


@pytest.mark.parametrize("expert", [-1, 2])
def test_experts_that_do_not_exist_are_refused(expert):
    w, x, ids = f32(np.zeros((2, 3, 4)), "w"), f32(np.zeros((1, 1, 4)), "x"), i32([[expert]])
    bias, rows = f32(np.zeros((2, 3)), "bias"), f32(np.zeros((1, 1, 3)), "rows")

    with pytest.raises(tp.GraphError) as product:
        value(tp.mul_mat_id(w[0], x[0], ids[0]), w, x, ids)
    with pytest.raises(tp.GraphError) as added:
        value(tp.add_id(rows[0], bias[0], ids[0]), rows, bias, ids)

    problem = f"id {expert} names no row; rows are 0 to 1"
    assert str(product.value) == f"reference: mul_mat_id: {problem}"
    assert str(added.value) == f"reference: add_id: {problem}"


def _attention(q, k, v, scale=1.0):
    """Attention of one head, one token at a time."""
    rows = []
    for token in q:
        power = [math.exp(scale * float(np.dot(token, key))) for key in k]
        rows.append(np.array(power) @ v.astype(float) / sum(power))
    return np.array(rows)


def test_attention_is_a_mean_of_v_weighted_by_softmax():
    q, k, v = random((3, 4)), random((5, 4), 1), random((5, 2), 2)
    leafs = f32(q[None], "q"), f32(k[None], "k"), f32(v[None], "v")

    found = value(tp.flash_attn_ext(*[t for t, _ in leafs], scale=0.5), *leafs)

    assert found[:, 0] == pytest.approx(_attention(q.astype(float), k, v, 0.5), rel=1e-12)


def test_attention_heads_share_keys_with_their_neighbours():
    q, k, v = random((4, 3, 8)), random((2, 5, 8), 1), random((2, 5, 8), 2)
    leafs = f32(q, "q"), f32(k, "k"), f32(v, "v")

    found = value(tp.flash_attn_ext(*[t for t, _ in leafs], scale=1.0), *leafs)

    for head in range(4):
        own = _attention(q[head].astype(float), k[head // 2], v[head // 2])
        assert found[:, head] == pytest.approx(own, rel=1e-12)


def test_attention_equals_softmax_between_two_products():
    q, k, v = f32(random((2, 3, 8)), "q"), f32(random((2, 5, 8), 1), "k"), f32(random((2, 5, 4), 2))
    mask, sinks = f32(random((3, 5), 3), "mask"), f32(random(2, 4), "sinks")
    leafs = q, k, v, mask, sinks
    scores = tp.soft_max(tp.mul_mat(k[0], q[0]), mask[0], sinks[0], scale=0.3, max_bias=8.0)
    apart = tp.mul_mat(tp.cont(tp.transpose(v[0])), scores)

    fused = tp.flash_attn_ext(*[t for t, _ in leafs], scale=0.3, max_bias=8.0)

    assert value(fused, *leafs) == pytest.approx(value(apart, *leafs).swapaxes(0, 1), rel=1e-12)


def test_attention_caps_scores_before_it_masks():
    q, k, v = f32([[[10.0]]], "q"), f32([[[1.0], [-1.0]]], "k"), f32([[[1.0], [0.0]]], "v")
    mask = f32([[0.0, 5.0]], "mask")
    leafs = q, k, v, mask

    found = value(tp.flash_attn_ext(*[t for t, _ in leafs], scale=1.0, softcap=2.0), *leafs)

    assert found.item() == pytest.approx(_sigmoid(4 * math.tanh(5) - 5))


def test_attention_of_a_token_that_sees_nothing_is_zero():
    q, k, v = f32(random((1, 2, 4)), "q"), f32(random((1, 3, 4)), "k"), f32(random((1, 3, 4)), "v")
    mask = f32([[0.0, 0.0, 0.0], [-math.inf] * 3], "mask")
    leafs = q, k, v, mask

    found = value(tp.flash_attn_ext(*[t for t, _ in leafs], scale=1.0), *leafs)

    assert np.all(found[0] != 0)
    assert np.all(found[1] == 0)
