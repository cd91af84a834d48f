"""Whole graphs: chains that backends fuse, attention, mixtures of experts, layers of models.

Each function draws its leafs and returns the outputs. The table GRAPHS names them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import tensorplug as tp
from tensorplug.device import Tensor
from tensorplug.dtypes import NVFP4
from tensorplug_testing.suites.drawing import Draw
from tensorplug_testing.suites.recurrent import kept_states
from tensorplug_testing.suites.scaled import (
    gated_scaled,
    gated_scaled_experts,
    scaled_experts,
    scaled_product,
)

Build = Callable[[Draw], Tensor | Sequence[Tensor]]

EXACT, NEAR, CLOSE = 1e-7, 1e-6, 5e-4
"""Limits of the normalised square error: f32 arithmetic; tables for exp and tanh; products that a
device may do in f16 or with encoded activations."""


@dataclass(frozen=True, slots=True)
class WholeGraph:
    """A function that builds a graph, and the largest error of any of its values."""

    build: Build
    limit: float


# --- elementwise -------------------------------------------------------------------------------


def _add_many(draw: Draw) -> Tensor:
    total = draw.input(5, 48)
    for term in [draw.input(5, 48), draw.input(48), draw.input(1, 48), draw.input(5, 48)]:
        total = total + term
    return total


def _chain(draw: Draw, op: str, terms: int) -> Tensor:
    total = draw.input(3, 40)
    for turn in range(terms):
        term = draw.input(3, 40)
        combine = tp.add if op == "add" else tp.mul
        total = combine(total, term) if turn % 2 else combine(term, total)
    return total


def _activation_mul(draw: Draw, op: str) -> Tensor:
    x, other = draw.input(5, 48), draw.input(5, 48)
    return other * tp.unary(op, x)


def _relu_sqr(draw: Draw) -> Tensor:
    return tp.sqr(tp.relu(draw.input(6, 40)))


def _snake(draw: Draw) -> Tensor:
    x, a, inv_b = draw.input(6, 40), draw.input(6, 1), draw.input(6, 1)
    return x + tp.sqr(tp.sin(x * a)) * inv_b


def _mul_add(draw: Draw) -> Tensor:
    return draw.input(3, 4, 33) * draw.input(33) + draw.input(4, 33)


def _scale_add_relu(draw: Draw) -> Tensor:
    return tp.relu(tp.scale(draw.input(6, 40), 1.7, bias=-0.2) + draw.input(6, 40))


def _softcap(draw: Draw) -> Tensor:
    return tp.scale(tp.tanh(tp.scale(draw.input(4, 50, low=-90, high=90), 1 / 30)), 30.0)


def _diamond(draw: Draw) -> Tensor:
    a = tp.scale(draw.input(4, 32), 2.0)
    return (a + a) * a - a


def _by_hand_norm(draw: Draw) -> Tensor:
    x = draw.input(5, 64)
    centred = x - tp.mean(x, -1, keepdims=True)
    deviation = tp.sqrt(tp.scale(tp.mean(tp.sqr(centred), -1, keepdims=True), 1.0, bias=1e-5))
    return centred / deviation


def _over_its_source(draw: Draw) -> Tensor:
    y = draw.input(4, 16) + draw.input(4, 16)
    return tp.in_place(tp.in_place(y * draw.input(4, 16)) + draw.input(16)) - tp.scale(y, 0.5)


# --- norms and rotations -----------------------------------------------------------------------


def _norm_mul_add(draw: Draw) -> Tensor:
    return tp.norm(draw.input(7, 96)) * draw.scales(96) + draw.input(96)


def _rms_norm_mul(draw: Draw, width: int = 128) -> Tensor:
    return tp.rms_norm(draw.input(7, width)) * draw.scales(width)


def _rms_norm_mul_add(draw: Draw) -> Tensor:
    return tp.rms_norm(draw.input(2, 7, 64)) * draw.scales(64) + draw.input(2, 7, 64)


def _group_norm_mul_add(draw: Draw) -> Tensor:
    normed = tp.group_norm(draw.input(6, 4, 16), 2)
    return normed * draw.input(6, 1, 1) + draw.input(6, 1, 1)


def _residuals(draw: Draw) -> list[Tensor]:
    """Sums that later nodes read in addition to their norms; the last sum is an output."""
    x, normed = draw.input(5, 64), draw.input(5, 64)
    for _ in range(3):
        x = x + normed
        normed = tp.rms_norm(x)
    return [x, normed]


def _add_norm_mul_add(draw: Draw) -> list[Tensor]:
    residual = draw.input(4, 32) + draw.input(4, 32)
    return [tp.norm(residual) * draw.scales(32) + draw.input(32), tp.relu(residual)]


def _add_rms_norm(draw: Draw) -> list[Tensor]:
    residual = draw.input(7, 64) + draw.input(7, 64)
    return [tp.rms_norm(residual) * draw.scales(64), residual]


def _rms_norm_mul_rope(draw: Draw, mode: str) -> Tensor:
    heads = tp.rms_norm(draw.input(6, 4, 32)) * draw.scales(32)
    return tp.rope(heads, draw.positions(6), dims=32, mode=mode)


def _rms_norm_mul_rope_sections(draw: Draw, mode: str) -> Tensor:
    """Scaled positions of four kinds; the norm sees the heads as rows of one matrix."""
    heads = tp.rms_norm(draw.input(15, 48)) * draw.scales(48)
    sections = (9, 7, 8, 0)
    return tp.rope(
        heads.reshape(5, 3, 48),
        draw.positions(20),
        dims=24 if mode == "vision" else 48,
        mode=mode,
        sections=sections,
        original_context=64,
        scale=0.25,
        ext_factor=1.0,
    )


def _rms_norm_mul_rope_part(draw: Draw) -> Tensor:
    """Rotation of a part of each head, with factors; there are gaps between heads, and each head
    has weights of its own."""
    wide = draw.input(2, 5, 3, 70)[..., 2:39]
    heads = tp.rms_norm(wide, eps=1e-3) * draw.input(3, 37)
    factors = draw.input(10, low=1, high=3)
    return tp.rope(heads, draw.positions(5), factors, dims=20, mode="neox")


def _rope_set_rows(draw: Draw, mode: str, *, partly: bool = False) -> Tensor:
    turned = tp.rope(draw.input(5, 2, 32), draw.positions(5), dims=32, mode=mode)
    rows = draw.rows(5, 16, partly=partly)
    return tp.set_rows(draw.cache(16, 64), turned.reshape(5, 64), rows)


def _rms_norm_mul_rope_set_rows(draw: Draw, mode: str) -> Tensor:
    heads = tp.rms_norm(draw.input(5, 2, 32)) * draw.scales(32)
    turned = tp.rope(heads, draw.positions(5), dims=32, mode=mode)
    return tp.set_rows(draw.cache(16, 64), turned.reshape(5, 64), draw.rows(5, 16))


def _rope_part(draw: Draw) -> Tensor:
    turned = tp.rope(draw.input(5, 3, 48), draw.positions(5), dims=32, mode="neox")
    return tp.rms_norm(turned)


# --- products ----------------------------------------------------------------------------------


def _product_bias(draw: Draw, dtype: tp.DType, tokens: int) -> Tensor:
    w = draw.weights(96, 256, dtype=dtype)
    return tp.mul_mat(w, draw.input(tokens, 256)) + draw.input(96)


def _product_bias_gelu(draw: Draw) -> Tensor:
    return tp.gelu(draw.input(6, 64) @ draw.weights(80, 64).T + draw.input(80))


def _product_residual(draw: Draw) -> Tensor:
    x = draw.input(6, 64)
    return x @ draw.weights(64, 64).T + x


def _two_products(draw: Draw) -> Tensor:
    return tp.relu(draw.input(6, 48) @ draw.weights(80, 48).T) @ draw.weights(24, 80).T


def _products_side_by_side(draw: Draw) -> list[Tensor]:
    x = tp.rms_norm(draw.input(3, 64)) * draw.scales(64)
    return [x @ draw.weights(n, 64).T for n in (64, 32, 32)]


# --- gated units -------------------------------------------------------------------------------


def _gated(draw: Draw, op: str, tokens: int, dtype: tp.DType = tp.F32) -> Tensor:
    x = draw.input(tokens, 64)
    gate, up = (tp.mul_mat(draw.weights(96, 64, dtype=dtype), x) for _ in range(2))
    return tp.mul_mat(draw.weights(64, 96, dtype=dtype), tp.glu(op, gate, up))


def _gated_with_bias(draw: Draw) -> Tensor:
    x = draw.input(1, 64)
    gate, up = (x @ draw.weights(96, 64).T + draw.input(96) for _ in range(2))
    return tp.swiglu(gate, up)


def _gated_with_one_bias(draw: Draw) -> Tensor:
    x = draw.input(2, 64)
    gate, up = (x @ draw.weights(96, 64).T for _ in range(2))
    return tp.swiglu_oai(gate, up + draw.input(96))


def _gated_halves(draw: Draw, op: str) -> Tensor:
    return tp.glu(op, draw.input(5, 64) @ draw.weights(160, 64).T)


def _gated_by_hand(draw: Draw) -> Tensor:
    return tp.silu(draw.input(5, 96)) * draw.input(5, 96)


# --- moving data -------------------------------------------------------------------------------


def _embedding(draw: Draw, dtype: tp.DType) -> Tensor:
    rows = tp.get_rows(draw.weights(40, 64, dtype=dtype), draw.rows(7, 40))
    return tp.rms_norm(tp.scale(rows, 8.0)) * draw.scales(64)


def _turned_and_added(draw: Draw) -> Tensor:
    return tp.cont(draw.input(6, 9).T) + draw.input(9, 6)


def _permuted_products(draw: Draw) -> Tensor:
    heads = tp.permute(draw.input(5, 3, 32), (1, 0, 2))
    scores = tp.mul_mat(heads, tp.scale(tp.cont(heads), 0.5))
    return tp.soft_max(scores)


def _joined(draw: Draw) -> Tensor:
    return tp.rms_norm(tp.concat(draw.input(5, 24), draw.input(5, 40), axis=1)) * draw.scales(64)


def _writes_that_overlap(draw: Draw) -> list[Tensor]:
    cache = draw.cache(8, 16, dtype=tp.F32)
    first = tp.cpy(draw.input(4, 16), cache[:4])
    between = tp.scale(cache, 2.0)
    second = tp.cpy(draw.input(4, 16), cache[2:6])
    return [first, between, second, tp.scale(cache, 3.0)]


def _logits(draw: Draw) -> list[Tensor]:
    x = tp.rms_norm(draw.input(3, 64)) * draw.scales(64)
    logits = x @ draw.weights(200, 64, dtype=tp.F16).T
    return [logits, tp.argmax(logits, -1)]


# --- attention ---------------------------------------------------------------------------------

HEADS, KV_HEADS, HEAD = 4, 2, 32
WIDTH = HEADS * HEAD


def _projected(draw: Draw, x: Tensor, heads: int) -> Tensor:
    """A product with `x`, as [head size, heads, tokens]."""
    w = draw.weights(heads * HEAD, WIDTH)
    return tp.mul_mat(w, x).reshape(x.shape[0], heads, HEAD)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention by single ops, of q, k and v [head size, heads, tokens]: [width, tokens]."""
    q, k = (tp.permute(t, (1, 0, 2)) for t in (q, k))
    probabilities = tp.soft_max(tp.mul_mat(k, q), mask, scale=HEAD**-0.5)
    columns = tp.cont(tp.permute(v, (1, 2, 0)))
    mixed = tp.permute(tp.mul_mat(columns, probabilities), (1, 0, 2))
    return tp.cont(mixed, (mixed.shape[0], WIDTH))


def _attention(draw: Draw, tokens: int, mask_type: tp.DType) -> Tensor:
    x, positions = draw.input(tokens, WIDTH), draw.positions(tokens)
    q, k = (
        tp.rope(_projected(draw, x, heads), positions, dims=HEAD) for heads in (HEADS, KV_HEADS)
    )
    mask = draw.mask(tokens, tokens, dtype=mask_type)
    mixed = _attend(q, k, _projected(draw, x, KV_HEADS), mask)
    return tp.mul_mat(draw.weights(WIDTH, WIDTH), mixed) + x


def _flash_attention(draw: Draw, tokens: int, softcap: float = 0.0) -> Tensor:
    q = tp.permute(draw.input(tokens, HEADS, HEAD), (1, 0, 2))
    k, v = (draw.input(KV_HEADS, 24, HEAD, dtype=tp.F16) for _ in range(2))
    mask = draw.mask(tokens, 24, dtype=tp.F16)
    mixed = tp.flash_attn_ext(q, k, v, mask, scale=HEAD**-0.5, softcap=softcap)
    return tp.mul_mat(draw.weights(WIDTH, WIDTH), mixed.reshape(tokens, WIDTH))


def _cached_attention(draw: Draw, tokens: int, x: Tensor, *, flash: bool) -> list[Tensor]:
    """Attention over a cache: new keys and values are stored at `rows`, then the cache is read."""
    positions, rows = draw.positions(tokens), draw.rows(tokens, 16)
    q, k = (
        tp.rope(_projected(draw, x, heads), positions, dims=HEAD, mode="neox")
        for heads in (HEADS, KV_HEADS)
    )
    size = KV_HEADS * HEAD
    new = [k.reshape(tokens, size), _projected(draw, x, KV_HEADS).reshape(tokens, size)]
    written = [tp.set_rows(draw.cache(16, size), t, rows) for t in new]
    keys, values = (t.reshape(16, KV_HEADS, HEAD) for t in written)
    mask = draw.mask(tokens, 16, dtype=tp.F16)
    if not flash:
        return [_attend(q, keys, values, mask), *written]
    q, keys, values = (tp.permute(t, (1, 0, 2)) for t in (q, keys, values))
    mixed = tp.flash_attn_ext(q, keys, values, mask, scale=HEAD**-0.5)
    return [mixed.reshape(tokens, WIDTH), *written]


def _cache_then_attention(draw: Draw, tokens: int, *, flash: bool) -> list[Tensor]:
    return _cached_attention(draw, tokens, draw.input(tokens, WIDTH), flash=flash)


# --- mixtures of experts -----------------------------------------------------------------------

EXPERTS, CHOSEN, INNER = 8, 2, 32


def _routed(logits: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """The experts of each token, and their weights as [1, chosen, tokens]."""
    tokens = logits.shape[0]
    gates = {"soft_max": tp.soft_max, "sigmoid": tp.sigmoid, "late": tp.cont, "raw": tp.soft_max}
    gate = gates[kind](logits)
    ids = tp.top_k(gate, CHOSEN)
    picked = tp.get_rows(gate.reshape(tokens, EXPERTS, 1), ids).reshape(tokens, CHOSEN)
    if kind == "late":
        picked = tp.soft_max(picked)
    elif kind != "raw":
        picked = picked / tp.sum_rows(picked)
    return ids, picked.reshape(tokens, CHOSEN, 1)


def _routing(draw: Draw, kind: str) -> Tensor:
    """The weighted sum of rows of each token's experts.

    The numbers of the experts are not outputs, because the order of equal scores is undefined.
    """
    logits = draw.input(9, 64) @ draw.weights(EXPERTS, 64).T
    ids, weights = _routed(logits, kind)
    table = draw.input(9, EXPERTS, 4)
    rows = tp.get_rows(table, ids) * weights
    return rows[:, 0] + rows[:, 1]


def _experts(draw: Draw, x: Tensor, dtype: tp.DType) -> Tensor:
    tokens, width = x.shape
    ids, weights = _routed(x @ draw.weights(EXPERTS, width).T, "soft_max")
    one = x.reshape(tokens, 1, width)
    gate, up = (
        tp.mul_mat_id(draw.weights(EXPERTS, INNER, width, dtype=dtype), one, ids) for _ in range(2)
    )
    down = draw.weights(EXPERTS, width, INNER, dtype=dtype)
    mixed = tp.mul_mat_id(down, tp.swiglu(gate, up), ids) * weights
    return mixed[:, 0] + mixed[:, 1]


def _mixture(draw: Draw, tokens: int, dtype: tp.DType) -> Tensor:
    x = draw.input(tokens, 64)
    return _experts(draw, tp.rms_norm(x) * draw.scales(64), dtype) + x


def _experts_with_bias(draw: Draw) -> Tensor:
    x = draw.input(5, 64)
    ids, weights = _routed(x @ draw.weights(EXPERTS, 64).T, "soft_max")
    up = tp.mul_mat_id(draw.weights(EXPERTS, 32, 64), x.reshape(5, 1, 64), ids)
    mixed = tp.add_id(up, draw.input(EXPERTS, 32), ids) * weights
    return mixed[:, 0] + mixed[:, 1]


def _gated_experts(draw: Draw, tokens: int, *, partly: bool = False) -> Tensor:
    x, rows = draw.input(tokens, 1, 64), draw.rows(CHOSEN * tokens, EXPERTS, partly=partly)
    ids = rows.reshape(tokens, CHOSEN)
    gate, up = (
        tp.add_id(
            tp.mul_mat_id(draw.weights(EXPERTS, 32, 64), x, ids), draw.input(EXPERTS, 32), ids
        )
        for _ in range(2)
    )
    return tp.swiglu(gate, up)


def _combined(draw: Draw, chosen: int) -> Tensor:
    mixed = draw.input(4, chosen, 32) * draw.input(4, chosen, 1)
    total = mixed[:, 0]
    for i in range(1, chosen):
        total = total + mixed[:, i]
    return total


def _sorted_routing(draw: Draw, kind: str) -> list[Tensor]:
    """Routing by a sort of all scores, as most models do it."""
    logits = draw.input(9, EXPERTS, low=-4, high=4)
    score: dict[str, Callable[[Tensor], Tensor]] = {
        "soft_max": tp.soft_max,
        "sigmoid": tp.sigmoid,
        "softplus": lambda x: tp.sqrt(tp.softplus(x)),
        "late": lambda x: x,
    }
    scores = score[kind](logits)
    ranked = scores + draw.input(EXPERTS) if kind == "sigmoid" else scores
    ids = tp.argsort(ranked, descending=True)[:, :CHOSEN]
    picked = tp.get_rows(scores.reshape(9, EXPERTS, 1), ids).reshape(9, CHOSEN)
    if kind == "late":
        return [ids, tp.soft_max(picked)]
    shares = picked / tp.clamp(tp.sum_rows(picked), 1e-4, 1e4)
    return [ids, tp.scale(shares, 2.5).reshape(9, CHOSEN, 1)]


# --- state spaces ------------------------------------------------------------------------------


def _ssm_conv_silu(draw: Draw, *, bias: bool) -> Tensor:
    conv = tp.ssm_conv(draw.input(2, 12, 9), draw.weights(12, 4))
    return tp.silu(conv + draw.input(12) if bias else conv)


# --- layers ------------------------------------------------------------------------------------


def _layer(draw: Draw, x: Tensor, tokens: int, *, flash: bool, mixture: bool) -> list[Tensor]:
    normed = tp.rms_norm(x) * draw.scales(WIDTH)
    mixed, *written = _cached_attention(draw, tokens, normed, flash=flash)
    x = x + tp.mul_mat(draw.weights(WIDTH, WIDTH), mixed)
    normed = tp.rms_norm(x) * draw.scales(WIDTH)
    if mixture:
        return [x + _experts(draw, normed, tp.F32), *written]
    gate, up = (tp.mul_mat(draw.weights(192, WIDTH), normed) for _ in range(2))
    return [x + tp.mul_mat(draw.weights(WIDTH, 192), tp.swiglu(gate, up)), *written]


def _layers(draw: Draw, tokens: int, *, flash: bool, mixture: bool) -> list[Tensor]:
    x, kept = draw.input(tokens, WIDTH), []
    for _ in range(2):
        x, *written = _layer(draw, x, tokens, flash=flash, mixture=mixture)
        kept.extend(written)
    return [x, *kept]


GRAPHS: dict[str, WholeGraph] = {
    "add_many": WholeGraph(_add_many, EXACT),
    "mul_add": WholeGraph(_mul_add, EXACT),
    "scale_add_relu": WholeGraph(_scale_add_relu, EXACT),
    **{
        f"{op}_chain_{terms}": WholeGraph(partial(_chain, op=op, terms=terms), EXACT)
        for op in ("add", "mul")
        for terms in (2, 7, 8, 19)
    },
    **{
        f"{op}_mul": WholeGraph(partial(_activation_mul, op=op), NEAR)
        for op in ("silu", "sigmoid", "softplus")
    },
    "relu_sqr": WholeGraph(_relu_sqr, EXACT),
    "snake": WholeGraph(_snake, NEAR),
    "softcap": WholeGraph(_softcap, NEAR),
    "diamond": WholeGraph(_diamond, EXACT),
    "norm_by_hand": WholeGraph(_by_hand_norm, EXACT),
    "over_its_source": WholeGraph(_over_its_source, EXACT),
    "norm_mul_add": WholeGraph(_norm_mul_add, EXACT),
    "rms_norm_mul": WholeGraph(_rms_norm_mul, EXACT),
    "rms_norm_mul_odd": WholeGraph(partial(_rms_norm_mul, width=77), EXACT),
    "rms_norm_mul_add": WholeGraph(_rms_norm_mul_add, EXACT),
    "group_norm_mul_add": WholeGraph(_group_norm_mul_add, EXACT),
    "residuals": WholeGraph(_residuals, EXACT),
    "add_norm_mul_add": WholeGraph(_add_norm_mul_add, EXACT),
    "add_rms_norm": WholeGraph(_add_rms_norm, EXACT),
    "rms_norm_mul_rope": WholeGraph(partial(_rms_norm_mul_rope, mode="normal"), NEAR),
    "rms_norm_mul_rope_neox": WholeGraph(partial(_rms_norm_mul_rope, mode="neox"), NEAR),
    **{
        f"rms_norm_mul_rope_{mode}": WholeGraph(
            partial(_rms_norm_mul_rope_sections, mode=mode), NEAR
        )
        for mode in ("mrope", "imrope", "vision")
    },
    "rms_norm_mul_rope_part": WholeGraph(_rms_norm_mul_rope_part, NEAR),
    "rope_set_rows": WholeGraph(partial(_rope_set_rows, mode="normal"), NEAR),
    "rope_set_rows_missing": WholeGraph(partial(_rope_set_rows, mode="normal", partly=True), NEAR),
    "rope_set_rows_neox": WholeGraph(partial(_rope_set_rows, mode="neox"), NEAR),
    **{
        f"rms_norm_mul_rope_set_rows_{mode}": WholeGraph(
            partial(_rms_norm_mul_rope_set_rows, mode=mode), NEAR
        )
        for mode in ("normal", "neox")
    },
    "rope_part_norm": WholeGraph(_rope_part, NEAR),
    **{
        f"product_bias_{dtype.name}_{tokens}": WholeGraph(
            partial(_product_bias, dtype=dtype, tokens=tokens), CLOSE
        )
        for dtype in (tp.F32, tp.F16, tp.BF16, tp.Q8_0, tp.Q4_0)
        for tokens in (1, 7)
    },
    "product_bias_gelu": WholeGraph(_product_bias_gelu, CLOSE),
    "product_residual": WholeGraph(_product_residual, CLOSE),
    "two_products": WholeGraph(_two_products, CLOSE),
    "products_side_by_side": WholeGraph(_products_side_by_side, CLOSE),
    **{
        f"gated_{op}_{tokens}": WholeGraph(partial(_gated, op=op, tokens=tokens), CLOSE)
        for op in ("swiglu", "geglu", "reglu")
        for tokens in (1, 6)
    },
    "gated_swiglu_q8_0": WholeGraph(partial(_gated, op="swiglu", tokens=1, dtype=tp.Q8_0), CLOSE),
    "gated_with_bias": WholeGraph(_gated_with_bias, CLOSE),
    "gated_with_one_bias": WholeGraph(_gated_with_one_bias, CLOSE),
    "gated_halves_swiglu": WholeGraph(partial(_gated_halves, op="swiglu"), CLOSE),
    "gated_halves_geglu": WholeGraph(partial(_gated_halves, op="geglu"), CLOSE),
    "gated_by_hand": WholeGraph(_gated_by_hand, NEAR),
    "embedding_f16": WholeGraph(partial(_embedding, dtype=tp.F16), NEAR),
    "embedding_q4_0": WholeGraph(partial(_embedding, dtype=tp.Q4_0), NEAR),
    "turned_and_added": WholeGraph(_turned_and_added, EXACT),
    "permuted_products": WholeGraph(_permuted_products, CLOSE),
    "joined_rms_norm_mul": WholeGraph(_joined, EXACT),
    "writes_that_overlap": WholeGraph(_writes_that_overlap, EXACT),
    "logits": WholeGraph(_logits, CLOSE),
    "attention_1": WholeGraph(partial(_attention, tokens=1, mask_type=tp.F32), CLOSE),
    "attention_9": WholeGraph(partial(_attention, tokens=9, mask_type=tp.F32), CLOSE),
    "attention_f16_mask": WholeGraph(partial(_attention, tokens=9, mask_type=tp.F16), CLOSE),
    "flash_attention_1": WholeGraph(partial(_flash_attention, tokens=1), CLOSE),
    "flash_attention_9": WholeGraph(partial(_flash_attention, tokens=9), CLOSE),
    "flash_attention_softcap": WholeGraph(partial(_flash_attention, tokens=3, softcap=5.0), CLOSE),
    "cache_then_attention_1": WholeGraph(
        partial(_cache_then_attention, tokens=1, flash=False), CLOSE
    ),
    "cache_then_attention_5": WholeGraph(
        partial(_cache_then_attention, tokens=5, flash=False), CLOSE
    ),
    "cache_then_flash_attention_1": WholeGraph(
        partial(_cache_then_attention, tokens=1, flash=True), CLOSE
    ),
    "cache_then_flash_attention_5": WholeGraph(
        partial(_cache_then_attention, tokens=5, flash=True), CLOSE
    ),
    **{
        f"routing_{kind}": WholeGraph(partial(_routing, kind=kind), CLOSE)
        for kind in ("soft_max", "sigmoid", "late", "raw")
    },
    **{
        f"sorted_routing_{kind}": WholeGraph(partial(_sorted_routing, kind=kind), CLOSE)
        for kind in ("soft_max", "sigmoid", "softplus", "late")
    },
    **{f"combined_{k}": WholeGraph(partial(_combined, chosen=k), EXACT) for k in (2, 6, 15)},
    **{f"gated_experts_{n}": WholeGraph(partial(_gated_experts, tokens=n), CLOSE) for n in (1, 4)},
    **{
        f"gated_experts_missing_{n}": WholeGraph(
            partial(_gated_experts, tokens=n, partly=True), CLOSE
        )
        for n in (1, 4)
    },
    **{
        f"scaled_product_{dtype.name}_{tokens}": WholeGraph(
            partial(scaled_product, dtype=dtype, tokens=tokens, bias=bias), CLOSE
        )
        for dtype, tokens, bias in ((NVFP4, 1, True), (tp.F16, 3, False))
    },
    **{
        f"gated_scaled_{dtype.name}_{tokens}": WholeGraph(
            partial(gated_scaled, dtype=dtype, tokens=tokens, bias=bias), CLOSE
        )
        for dtype, tokens, bias in ((NVFP4, 1, False), (tp.F32, 3, True))
    },
    "scaled_experts_1": WholeGraph(partial(scaled_experts, tokens=1, bias=False), CLOSE),
    "scaled_experts_4": WholeGraph(partial(scaled_experts, tokens=4, bias=True), CLOSE),
    "gated_scaled_experts_1": WholeGraph(
        partial(gated_scaled_experts, dtype=NVFP4, tokens=1, bias=False), CLOSE
    ),
    "gated_scaled_experts_3": WholeGraph(
        partial(gated_scaled_experts, dtype=tp.Q8_0, tokens=3, bias=True), CLOSE
    ),
    "ssm_conv_silu": WholeGraph(partial(_ssm_conv_silu, bias=False), NEAR),
    "ssm_conv_add_silu": WholeGraph(partial(_ssm_conv_silu, bias=True), NEAR),
    "kept_states_1": WholeGraph(partial(kept_states, slots=1), NEAR),
    "kept_states_3": WholeGraph(partial(kept_states, slots=3), NEAR),
    "kept_states_apart": WholeGraph(partial(kept_states, slots=1, apart=True), CLOSE),
    "mixture_1": WholeGraph(partial(_mixture, tokens=1, dtype=tp.F32), CLOSE),
    "mixture_9": WholeGraph(partial(_mixture, tokens=9, dtype=tp.F32), CLOSE),
    "mixture_q8_0": WholeGraph(partial(_mixture, tokens=4, dtype=tp.Q8_0), CLOSE),
    "experts_with_bias": WholeGraph(_experts_with_bias, CLOSE),
    "layers_1": WholeGraph(partial(_layers, tokens=1, flash=False, mixture=False), CLOSE),
    "layers_flash_5": WholeGraph(partial(_layers, tokens=5, flash=True, mixture=False), CLOSE),
    "layers_mixture_3": WholeGraph(partial(_layers, tokens=3, flash=False, mixture=True), CLOSE),
}
