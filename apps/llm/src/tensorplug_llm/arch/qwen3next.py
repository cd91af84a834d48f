"""Qwen3-Next (model card Qwen3-Next-80B-A3B): gated delta nets, and gated attention in few layers.

The gated delta rule is of Yang et al. 2024, arXiv:2412.06464. Every layer has experts.
"""

from dataclasses import replace

import numpy as np

import tensorplug as tp
from tensorplug import Tensor
from tensorplug.gguf import ModelFile
from tensorplug_llm.arch.architecture import Architecture, Part, Pass
from tensorplug_llm.arch.blocks import attended, embed, linear, logits, norm
from tensorplug_llm.arch.experts import mixture
from tensorplug_llm.arch.recurrent import (
    by_part,
    convolved,
    keep_state,
    recurrence_of,
    slots_of,
)
from tensorplug_llm.arch.tables import (
    Expected,
    expert_tensors,
    head_norm_tensors,
    linear_tensors,
    norm_tensors,
)
from tensorplug_llm.hparams import (
    HParams,
    HParamsReader,
    read_experts,
    read_hparams,
    read_recurrence,
)

NAME = "qwen3next"
ATTENTION_EVERY = 4


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of a Qwen3-Next model."""
    hp = read_hparams(file, NAME, rope_mode="neox", has_experts=True)
    read = HParamsReader(file, NAME)
    recurrence = read_recurrence(read, _recurrent_layers(read, hp.layers))
    if recurrence.inner != recurrence.heads * recurrence.size:
        problem = f"heads of {recurrence.size} elements, as ssm.state_size says, would make "
        problem += f"{recurrence.heads * recurrence.size}"
        raise read.error("ssm.inner_size", recurrence.inner, problem)
    read.used_experts()
    experts = read_experts(
        read,
        read.size("expert_feed_forward_length"),
        normalized=True,
        shared_feed_forward=read.size("expert_shared_feed_forward_length", hp.feed_forward),
    )
    return replace(hp, experts=experts, recurrence=recurrence)


def _recurrent_layers(read: HParamsReader, layers: int) -> frozenset[int]:
    """All layers but each fourth one, or as the file says."""
    listed = read.file.metadata.get(read.key("attention.recurrent_layers"))
    if isinstance(listed, np.ndarray):
        if listed.size != layers:
            raise read.error(
                "attention.recurrent_layers", listed.tolist(), f"there are {layers} layers"
            )
        return frozenset(np.flatnonzero(listed).tolist())
    every = read.size("full_attention_interval", ATTENTION_EVERY)
    return frozenset(i for i in range(layers) if (i + 1) % every)


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of a layer with attention; each head has a query and a gate."""
    rows = hp.heads * hp.key_length
    return (
        *linear_tensors("attn_q", hp.embedding, 2 * rows),
        *linear_tensors("attn_k", hp.embedding, hp.key_row),
        *linear_tensors("attn_v", hp.embedding, hp.value_row),
        *linear_tensors("attn_output", rows, hp.embedding),
        *head_norm_tensors(hp),
        *_shared_tensors(hp),
    )


def recurrent_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of a layer with a gated delta net."""
    r = recurrence_of(hp)
    return (
        *linear_tensors("attn_qkv", hp.embedding, r.channels),
        *linear_tensors("attn_gate", hp.embedding, r.inner),
        *linear_tensors("ssm_ba", hp.embedding, 2 * r.heads),
        Expected("ssm_conv1d.weight", (r.past + 1, r.channels), exact=True),
        Expected("ssm_dt.bias", (r.heads,)),
        Expected("ssm_a", (r.heads,)),
        Expected("ssm_norm.weight", (r.size,)),
        *linear_tensors("ssm_out", r.inner, hp.embedding),
        *_shared_tensors(hp),
    )


def _shared_tensors(hp: HParams) -> tuple[Expected, ...]:
    assert hp.experts is not None
    return (
        *norm_tensors(hp, "attn_norm", "post_attention_norm"),
        *expert_tensors(hp, hp.experts),
        Expected("ffn_gate_inp_shexp.weight", (hp.embedding,)),
    )


def forward(p: Pass) -> Tensor:
    """Pre-norm blocks; the norm before the experts is called `post_attention_norm`."""
    recurrent = recurrence_of(p.hparams).layers
    x = embed(p)
    for i in range(p.hparams.layers):
        block = _delta_net if i in recurrent else _attention
        x = tp.add(block(p, i, norm(p, x, f"blk.{i}.attn_norm")), x)
        y = mixture(p, i, norm(p, x, f"blk.{i}.post_attention_norm"))
        x = tp.add(y, x, name=f"blk.{i}.out")
    return logits(p, x)


def _attention(p: Pass, layer: int, x: Tensor) -> Tensor:
    """Attention whose results pass a gate of their own."""
    hp, block = p.hparams, f"blk.{layer}"
    both = tp.reshape(linear(p, x, f"{block}.attn_q"), (p.tokens, hp.heads, 2 * hp.key_length))
    rows = (p.tokens, hp.heads * hp.key_length)
    q = tp.cont(both[:, :, : hp.key_length], rows)
    gate = tp.cont(both[:, :, hp.key_length :], rows)
    k, v = linear(p, x, f"{block}.attn_k"), linear(p, x, f"{block}.attn_v")
    y = tp.mul(attended(p, layer, q, k, v), tp.sigmoid(gate))
    return linear(p, y, f"{block}.attn_output")


def _delta_net(p: Pass, layer: int, x: Tensor) -> Tensor:
    """Tokens with what the states know of those before them, behind a gate."""
    r, block = recurrence_of(p.hparams), f"blk.{layer}"
    qkv, gate = linear(p, x, f"{block}.attn_qkv"), linear(p, x, f"{block}.attn_gate")
    # Rows of each group: how much its heads correct their states, then how much they forget.
    grouped = (p.tokens, r.groups, 2 * r.heads // r.groups)
    both = tp.reshape(linear(p, x, f"{block}.ssm_ba"), grouped)
    half = r.heads // r.groups
    beta = tp.sigmoid(tp.cont(both[:, :, :half], (p.tokens, r.heads)))
    time = tp.add(
        tp.cont(both[:, :, half:], (p.tokens, r.heads)), p.weights[f"{block}.ssm_dt.bias"]
    )
    decay = tp.mul(tp.softplus(time), p.weights[f"{block}.ssm_a"])

    rows = tp.concat(tp.concat(qkv, beta, axis=1), decay, axis=1)
    y = by_part(p, rows, lambda part, rows: _corrected(p, layer, part, rows))
    heads = (p.tokens, r.heads, r.size)
    normed = norm(p, tp.reshape(y, heads), f"{block}.ssm_norm")
    gated = tp.mul(normed, tp.silu(tp.reshape(gate, heads)))
    return linear(p, tp.reshape(gated, (p.tokens, r.inner)), f"{block}.ssm_out")


def _corrected(p: Pass, layer: int, part: Part, x: Tensor) -> Tensor:
    """The gated delta rule over the tokens of a part: f32 [inner, tokens]."""
    r, block, slots = recurrence_of(p.hparams), f"blk.{layer}", slots_of(part)
    assert p.states is not None
    texts, length = slots.texts, part.count // slots.texts
    kernel = f"{block}.ssm_conv1d.weight"
    u = tp.silu(convolved(p, layer, part, tp.cont(x[:, : r.channels]), kernel))
    beta, decay = (
        tp.cont(x[:, begin : begin + r.heads]) for begin in (r.channels, r.channels + r.heads)
    )
    if slots.real is not None:
        # Padding neither corrects a state nor lets it be forgotten.
        beta, decay = tp.mul(beta, slots.real), tp.mul(decay, slots.real)

    keys = r.groups * r.size
    q, k = (_for_heads(p, u[:, begin : begin + keys], part) for begin in (0, keys))
    table = p.states.states[layer]
    shape = (texts, length, r.heads, 1)
    net = tp.gated_delta_net(
        tp.reshape(q, (texts, length, r.heads, r.size)),
        tp.reshape(k, (texts, length, r.heads, r.size)),
        tp.cont(u[:, 2 * keys :], (texts, length, r.heads, r.size)),
        tp.reshape(decay, shape),
        tp.reshape(beta, shape),
        tp.reshape(tp.get_rows(table, slots.reads), (texts, r.heads, r.size, r.size)),
        name=f"{block}.delta_net",
    )
    keep_state(p, layer, part, net[part.count :])
    return net[: part.count]


def _for_heads(p: Pass, x: Tensor, part: Part) -> Tensor:
    """Queries or keys of length 1, each as often as its group has heads."""
    r = recurrence_of(p.hparams)
    rows = tp.cont(x, (part.count * r.groups, 1, r.size))
    # As an l2 norm whose eps is added to the sum of squares.
    eps = p.hparams.norm_eps / r.size
    unit = tp.scale(tp.rms_norm(rows, eps=eps), r.size**-0.5)
    return tp.repeat(unit, (part.count * r.groups, r.heads // r.groups, r.size))


QWEN3NEXT = Architecture(NAME, read, layer_tensors, forward, recurrent_tensors=recurrent_tensors)
