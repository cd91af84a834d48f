"""Mixtures of experts: each token takes the results of a few of many feed-forward blocks."""

import functools
import math
from collections.abc import Callable

import tensorplug as tp
from tensorplug import Tensor
from tensorplug_llm.arch.architecture import Pass
from tensorplug_llm.arch.blocks import linear

Gated = Callable[[Tensor, Tensor], Tensor]
"""An activation of two inputs: the gate, and what it lets through."""
LEAST_SUM = 2.0**-14
"""Weights of experts are divided by no less: the smallest normal half."""


def mixture(p: Pass, layer: int, x: Tensor) -> Tensor:
    """Sum of the weighted results of the experts that each token takes, and of the shared one."""
    block, experts = f"blk.{layer}", p.hparams.experts
    assert experts is not None
    scores = tp.soft_max(linear(p, x, f"{block}.ffn_gate_inp"), name=f"{block}.ffn_scores")
    ids = tp.top_k(scores, experts.used, name=f"{block}.ffn_experts")
    weights = picked(p, scores, ids)
    if experts.normalized:
        weights = tp.div(weights, tp.clamp(tp.sum_rows(weights), LEAST_SUM, math.inf))
    if experts.scale != 1.0:
        weights = tp.scale(weights, experts.scale)

    y = results(p, block, x, ids, weights, tp.swiglu)
    return tp.add(y, _shared(p, block, x)) if experts.shared_feed_forward else y


def picked(p: Pass, scores: Tensor, ids: Tensor) -> Tensor:
    """The scores of the experts `ids` [used, tokens]."""
    table = tp.reshape(scores, (p.tokens, scores.ne[0], 1))
    return tp.reshape(tp.get_rows(table, ids), (p.tokens, ids.ne[0]))


def results(p: Pass, block: str, x: Tensor, ids: Tensor, weights: Tensor, gated: Gated) -> Tensor:
    """Sum of the results of the experts `ids`, each times its weight [used, tokens]."""
    rows = tp.reshape(x, (p.tokens, 1, x.ne[0]))
    gate = by_expert(p, rows, ids, f"{block}.ffn_gate_exps")
    up = by_expert(p, rows, ids, f"{block}.ffn_up_exps")
    y = by_expert(p, gated(gate, up), ids, f"{block}.ffn_down_exps")
    return weighted_sum(p, y, weights)


def by_expert(p: Pass, x: Tensor, ids: Tensor, name: str) -> Tensor:
    """Rows of `x` times the matrices `name` of the experts `ids`, plus their biases if any."""
    y = tp.mul_mat_id(p.weights[f"{name}.weight"], x, ids, name=name)
    bias = p.weights.get(f"{name}.bias")
    return y if bias is None else tp.add_id(y, bias, ids)


def weighted_sum(p: Pass, y: Tensor, weights: Tensor) -> Tensor:
    """Sum of results [n, used, tokens] of experts times their weights [used, tokens]."""
    used = weights.ne[0]
    weighted = tp.mul(y, tp.reshape(weights, (p.tokens, used, 1)))
    if used == 1:
        return tp.reshape(weighted, (p.tokens, y.ne[0]))
    return functools.reduce(tp.add, (weighted[:, i] for i in range(used)))


def _shared(p: Pass, block: str, x: Tensor) -> Tensor:
    """The result of the expert that every token takes, behind its own gate where it has one."""
    gate, up = linear(p, x, f"{block}.ffn_gate_shexp"), linear(p, x, f"{block}.ffn_up_shexp")
    y = linear(p, tp.swiglu(gate, up), f"{block}.ffn_down_shexp")
    if f"{block}.ffn_gate_inp_shexp.weight" not in p.weights:
        return y
    return tp.mul(y, tp.sigmoid(linear(p, x, f"{block}.ffn_gate_inp_shexp")))
