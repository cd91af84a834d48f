"""LFM2 (Liquid AI 2025, arXiv:2511.23404): gated short convolutions, and attention in a few layers.

The last norm is called `token_embd_norm`.
"""

from dataclasses import replace

import numpy as np

import tensorplug as tp
from tensorplug import Tensor
from tensorplug.gguf import ModelFile
from tensorplug_llm.arch.architecture import Architecture, Pass
from tensorplug_llm.arch.blocks import attention, embed, gated, linear, logits, norm
from tensorplug_llm.arch.recurrent import by_part, convolved, recurrence_of
from tensorplug_llm.arch.tables import (
    Expected,
    attention_tensors,
    gated_tensors,
    head_norm_tensors,
    linear_tensors,
    norm_tensors,
)
from tensorplug_llm.hparams import HParams, HParamsReader, Recurrence, read_hparams

NAME = "lfm2"
KV_HEADS = "attention.head_count_kv"
LAST_NORM = "token_embd_norm"


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of an LFM2 model; layers without heads of keys and values are recurrent."""
    read = HParamsReader(file, NAME)
    counts = _kv_heads(read)
    hp = read_hparams(file, NAME, rope_mode="neox", kv_heads=max(counts))
    if not hp.causal:
        raise read.error("attention.causal", value=False, problem="convolutions must be causal")
    if len(counts) != hp.layers:
        raise read.error(KV_HEADS, counts, f"it must say so for all {hp.layers} layers")
    layers = frozenset(i for i, count in enumerate(counts) if not count)
    past = read.kernel("shortconv.l_cache") - 1
    return replace(hp, recurrence=Recurrence(layers, channels=hp.embedding, past=past))


def _kv_heads(read: HParamsReader) -> list[int]:
    """Heads of keys and values of each layer: 0, or one number for all others."""
    heads = read.size("attention.head_count")
    value = read.file.metadata.get(read.key(KV_HEADS))
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
        raise read.error(KV_HEADS, value, "it must have a number for each layer")
    counts: list[int] = value.tolist()
    others = {count for count in counts if count}
    if len(others) != 1 or not all(0 < n <= heads and heads % n == 0 for n in others):
        raise read.error(KV_HEADS, counts, f"it must have 0 and one divisor of {heads}")
    return counts


def model_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors outside the layers."""
    return (
        Expected("token_embd.weight", (hp.embedding, hp.vocabulary)),
        Expected(f"{LAST_NORM}.weight", (hp.embedding,)),
        Expected("output.weight", (hp.embedding, hp.vocabulary), optional=True),
    )


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of a layer with attention."""
    return (
        *norm_tensors(hp, "attn_norm", "ffn_norm"),
        *attention_tensors(hp),
        *head_norm_tensors(hp),
        *gated_tensors(hp),
    )


def recurrent_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of a layer with a convolution."""
    size = hp.embedding
    return (
        *norm_tensors(hp, "attn_norm", "ffn_norm"),
        *linear_tensors("shortconv.in_proj", size, 3 * size),
        Expected("shortconv.conv.weight", (recurrence_of(hp).past + 1, size), exact=True),
        *linear_tensors("shortconv.out_proj", size, size),
        *gated_tensors(hp),
    )


def forward(p: Pass) -> Tensor:
    """Logits; each block is normed on its way in."""
    recurrent = recurrence_of(p.hparams).layers
    x = embed(p)
    for i in range(p.hparams.layers):
        block = _convolved if i in recurrent else attention
        x = tp.add(block(p, i, norm(p, x, f"blk.{i}.attn_norm")), x)
        x = tp.add(gated(p, i, norm(p, x, f"blk.{i}.ffn_norm")), x, name=f"blk.{i}.out")
    return logits(p, x, LAST_NORM)


def _convolved(p: Pass, layer: int, x: Tensor) -> Tensor:
    """A convolution over a few tokens, between a gate on its way in and one on its way out."""
    block, size = f"blk.{layer}.shortconv", p.hparams.embedding
    y = linear(p, x, f"{block}.in_proj")
    into, out, values = (y[:, i * size : (i + 1) * size] for i in range(3))
    kernel = f"{block}.conv.weight"
    mixed = by_part(p, tp.mul(into, values), lambda part, x: convolved(p, layer, part, x, kernel))
    return linear(p, tp.mul(out, mixed), f"{block}.out_proj")


LFM2 = Architecture(
    NAME, read, layer_tensors, forward, model_tensors, recurrent_tensors=recurrent_tensors
)
