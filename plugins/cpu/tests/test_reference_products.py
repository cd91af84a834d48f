"""The reference for rope, matrix products and attention, against sums and turns done by hand."""

import cmath
import math

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.ops.rope import MODES

from .leafs import f32, i32, random, value

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


@pytest.mark.parametrize("expert", [-2, 2])
def test_experts_that_do_not_exist_are_refused(expert):
    w, x, ids = f32(np.zeros((2, 3, 4)), "w"), f32(np.zeros((1, 1, 4)), "x"), i32([[expert]])
    bias, rows = f32(np.zeros((2, 3)), "bias"), f32(np.zeros((1, 1, 3)), "rows")

    with pytest.raises(tp.GraphError) as product:
        value(tp.mul_mat_id(w[0], x[0], ids[0]), w, x, ids)
    with pytest.raises(tp.GraphError) as added:
        value(tp.add_id(rows[0], bias[0], ids[0]), rows, bias, ids)

    problem = f"id {expert} names no row; rows are 0 to 1, and -1 stands for none"
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

    assert found.item() == pytest.approx(1 / (1 + math.exp(5 - 4 * math.tanh(5))))


def test_attention_of_a_token_that_sees_nothing_is_zero():
    q, k, v = f32(random((1, 2, 4)), "q"), f32(random((1, 3, 4)), "k"), f32(random((1, 3, 4)), "v")
    mask = f32([[0.0, 0.0, 0.0], [-math.inf] * 3], "mask")
    leafs = q, k, v, mask

    found = value(tp.flash_attn_ext(*[t for t, _ in leafs], scale=1.0), *leafs)

    assert np.all(found[0] != 0)
    assert np.all(found[1] == 0)
