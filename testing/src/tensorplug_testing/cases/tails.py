"""A case of each op that is slightly larger than a tile of 32,768 elements.

The source or the result ends in a short tile whose length is not a power of two. The last elements
change the result, so a kernel that loses elements there fails the case.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import tensorplug as tp
from tensorplug.ops.glu import GLU
from tensorplug.ops.unary import UNARY
from tensorplug_testing.cases.attention import attention
from tensorplug_testing.cases.backward import SHARES, two
from tensorplug_testing.cases.case import Arg, Array, Case, Data, distinct, integers, uniform
from tensorplug_testing.cases.conv import conv
from tensorplug_testing.cases.copy import cast, cpy
from tensorplug_testing.cases.custom import chosen, doubled, first_of_two, same
from tensorplug_testing.cases.elementwise import EXPERT, binary, constant
from tensorplug_testing.cases.image import padded, resized
from tensorplug_testing.cases.linear_attention import (
    gated_delta_net,
    gated_linear_attn,
    rwkv_wkv6,
    rwkv_wkv7,
)
from tensorplug_testing.cases.matmul import outer, product, product_of_experts
from tensorplug_testing.cases.optimizer import adamw, sgd
from tensorplug_testing.cases.pool import pool
from tensorplug_testing.cases.rope import rope
from tensorplug_testing.cases.rows import back, get, put
from tensorplug_testing.cases.softmax import soft_max
from tensorplug_testing.cases.sparse import comb, indexer, post, pre
from tensorplug_testing.cases.ssm import ssm_conv, ssm_scan
from tensorplug_testing.cases.window import added, part, unpart

TILE = 1 << 15
"""Elements of a tile of the NumPy kernels."""
FLAT = (181, 183)
"""33,123 elements."""
LONG = (361, 93)
"""33,573 elements in fewer rows."""


def _peak_at_the_end(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers between -1 and 1, with a larger number at the end of each row."""
    values = rng.uniform(-1, 1, shape)
    values[..., -1] = 2
    return values


def _share_at_the_end(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Rows of positive numbers with the sum 1, whose last element is about a half."""
    shares = rng.uniform(0.5, 1, shape)
    shares[..., -1] = 0
    shares /= 2 * shares.sum(axis=-1, keepdims=True)
    shares[..., -1] = 0.5
    return shares


_PEAK, _SHARE = Data("peak", _peak_at_the_end), Data("late_share", _share_at_the_end)
_ABOVE = uniform(1.5, 4)
"""Numbers that no function of one element turns into zero."""
_ONE = Data("ones", lambda _, shape: np.ones(shape))


def _of(op: str, *args: Arg, **more: Any) -> Case:
    return Case(op=op, args=args, **more)


_OF_ROWS: list[tuple[str, Mapping[str, Any]]] = [
    ("sum", {}),
    ("sum_rows", {}),
    ("mean", {}),
    ("cumsum", {}),
    ("norm", {"eps": 1e-5}),
    ("rms_norm", {"eps": 1e-6}),
    ("l2_norm", {"eps": 1e-12}),
]

ELEMENTS = [
    *[_of(op, Arg(FLAT, data=_ABOVE), each=True) for op in UNARY],
    *[_of(op, Arg((362, 183), data=_ABOVE), each=True) for op in (*GLU, "swiglu_oai")],
    *[binary(op, Arg(FLAT), Arg((181,), data=_ABOVE)) for op in ("add", "sub", "mul", "div")],
    _of("xielu", Arg(FLAT), params={"alpha_n": 0.8, "alpha_p": 0.7, "beta": 0.5, "eps": -1e-6}),
    constant("scale", Arg(FLAT), {"scale": 0.37}),
    constant("clamp", Arg(FLAT, data=uniform(-4, 4)), {"min": -3.5, "max": 3.5}),
    constant("leaky_relu", Arg(FLAT), {"slope": 0.1}),
    constant("fill", Arg(FLAT), {"value": -1.25}),
    _of("add1", Arg(FLAT), Arg((1,)), each=True),
    _of("add_id", Arg((361, 3, 31)), Arg((361, 6)), Arg((3, 31), tp.I32, data=EXPERT), each=True),
    _of("arange", params={"start": 0.0, "stop": 33123.0, "step": 1.0}, each=True),
    adamw(FLAT),
    sgd(FLAT),
    two("silu_back", Arg(FLAT), Arg(FLAT)),
    _of("map_custom1", Arg(FLAT), params={"function": doubled}),
    _of("map_custom2", Arg(FLAT), Arg(FLAT), params={"function": first_of_two}),
    _of("map_custom3", *[Arg(FLAT)] * 3, params={"function": chosen}),
    _of("custom", Arg(FLAT), params={"function": same, "ne": (181, 183, 1, 1), "rank": 2}),
]

ROWS = [
    *[_of(op, Arg(FLAT, data=_PEAK), params=params) for op, params in _OF_ROWS],
    _of("group_norm", Arg((61, 61, 9)), params={"groups": 3, "eps": 1e-5}),
    _of("count_equal", *[Arg(FLAT, tp.I32, data=_ONE)] * 2, compare="exact"),
    _of("argmax", Arg(LONG, data=_PEAK), compare="exact"),
    _of("argsort", Arg(LONG, data=_PEAK), params={"descending": False}, compare="order"),
    _of("top_k", Arg(LONG, data=_PEAK), params={"k": 5}, compare="set"),
    soft_max(Arg(FLAT)),
    rope(Arg((128, 3, 87)), dims=128),
    replace(rope(Arg((128, 3, 87)), dims=128), op="rope_back"),
    two("rms_norm_back", Arg(FLAT), Arg(FLAT), eps=1e-5),
    two("soft_max_back", Arg(FLAT), Arg(FLAT, data=SHARES), scale=0.5),
    two("cross_entropy_loss", Arg((16561, 2)), Arg((16561, 2), data=_SHARE)),
    _of("cross_entropy_loss_back", Arg((1,)), Arg(FLAT), Arg(FLAT, data=SHARES)),
    get(Arg((361, 40)), Arg((93,), tp.I32, data=integers(0, 40))),
    put(Arg((361, 95)), Arg(LONG), Arg((93,), tp.I64, data=distinct(95))),
    back(Arg(LONG), Arg((93,), tp.I32, data=integers(0, 100)), 100),
    comb(tokens=2100, n_iter=3),
    pre((181, 4, 46)),
    post((181, 4, 46)),
    _of(
        "timestep_embedding",
        Arg((105,), data=uniform(0, 20)),
        params={"dim": 320, "max_period": 4},
        limit=1e-6,
    ),
]

PRODUCTS = [
    product(Arg((32, 361)), Arg((32, 93))),
    product_of_experts(Arg((32, 181, 4)), Arg((32, 1, 93)), Arg((2, 93), tp.I32, data=distinct(4))),
    outer(Arg((361, 5)), Arg((93, 5))),
    attention(Arg((64, 131, 4)), Arg((64, 37, 2)), Arg((64, 37, 2))),
    _of(
        "flash_attn_back",
        *[Arg(ne) for ne in ((61, 181), (61, 184), (184, 61), (61, 181))],
        params={"masked": False},
    ),
    _of("solve_tri", Arg((9, 9), data=_ONE), Arg((3683, 9))),
    ssm_conv(Arg((186, 181)), Arg((4, 181))),
    ssm_scan((4, 61, 60, 2, 9, 1)),
    rwkv_wkv6((64, 9, 58, 1)),
    rwkv_wkv7((64, 9, 58, 1)),
    gated_linear_attn((64, 9, 58, 1)),
    gated_delta_net((64, 9, 58, 1)),
    indexer((8, 2, 93, 361, 1)),
]

COPIES = [
    _of("cont", Arg(FLAT, layout="transposed"), compare="exact"),
    cast(Arg(FLAT), tp.F16),
    cpy(Arg(FLAT), Arg(FLAT, tp.F16)),
    _of("concat", Arg((181, 100)), Arg((181, 83)), params={"dim": 1}, compare="exact"),
    _of("repeat", Arg((181, 61)), params={"ne": (181, 183, 1, 1), "rank": 2}, compare="exact"),
    _of("repeat_back", Arg((181, 366)), params={"ne": (181, 183, 1, 1), "rank": 2}),
    *[
        _of(op, Arg(FLAT), Arg((9, 11)), params=dict.fromkeys(("nb1", "nb2", "nb3"), 724) | at)
        for op in ("acc", "set")
        for at in ({"offset": 4 * (172 * 181 + 172)},)
    ],
    _of("diag", Arg((183, 1))),
    _of("tri", Arg((183, 183)), params={"kind": "lower_diag"}),
    *[_of(op, Arg(FLAT), params={"n_past": 2}) for op in ("diag_mask_zero", "diag_mask_inf")],
    part((5, 82, 81), 7),
    unpart(5, 82, 81, 7),
    _of("get_rel_pos", Arg((64, 45)), params={"qh": 23, "kh": 23}, compare="exact"),
    added(13, 14, 14, 1),
]

IMAGES = [
    resized((91, 46, 1, 1), (182, 183, 1, 1), mode="bilinear"),
    padded((180, 182, 1, 1), (0, 1, 1, 0, 0, 0, 0, 0), circular=True),
    _of("pad_reflect_1d", Arg((180, 184)), params={"p0": 0, "p1": 1}, compare="exact"),
    _of("roll", Arg(FLAT), params={"shifts": (1, -2, 0, 0)}, compare="exact"),
    conv((2, 1, 1, 1), (185, 181, 1, 1)),
    conv((2, 1, 1, 3), (107, 105, 3, 1), op="conv_2d_dw"),
    conv(
        (2, 1, 1, 1),
        (34, 33, 31, 1),
        {"n_channels": 1, "n_batch": 1, "n_channels_out": 1},
        op="conv_3d",
    ),
    conv((4, 13, 1), (860, 1), {"s0": 3}, op="conv_transpose_1d"),
    conv((3, 2, 3, 1), (61, 45, 1), {"s0": 2, "s1": 2}, op="conv_transpose_2d"),
    _of("im2col", Arg((3, 1, 1)), Arg((115, 99, 1)), params={"to": "f32"}),
    _of("im2col_3d", Arg((2, 1, 1, 1)), Arg((27, 26, 25, 1)), params={"n_channels": 1}),
    _of("im2col_back", Arg((3, 113, 99)), Arg((3, 1, 1)), params={"ne": (115, 99, 1, 1)}),
    _of("col2im_1d", Arg((16, 2100)), params={"s0": 4, "oc": 4}),
    pool("pool_1d", Arg((361, 93)), kind="avg", k0=2, s0=1),
    pool("pool_2d", Arg((185, 181)), kind="max", k0=2, k1=1, s0=1, s1=1),
    _of(
        "pool_2d_back",
        Arg((184, 181)),
        Arg((185, 181)),
        params={"kind": "avg", "k0": 2, "k1": 1, "s0": 1, "s1": 1},
    ),
]

CASES = [replace(case, always=True) for case in (*ELEMENTS, *ROWS, *PRODUCTS, *COPIES, *IMAGES)]
