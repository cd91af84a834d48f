"""ModernBERT (Warner et al. 2024, arXiv:2412.13663): an encoder with rotary positions.

Norms precede the blocks. Most layers look at a window only; gate and up are one matrix.
"""

from dataclasses import replace

from tensorplug import Tensor
from tensorplug.gguf import ModelFile
from tensorplug_llm.arch.architecture import Architecture, Pass
from tensorplug_llm.arch.blocks import attention, embed, gated, join, logits, norm
from tensorplug_llm.arch.tables import (
    Expected,
    fused_gated_tensors,
    norm_tensors,
    packed_attention_tensors,
)
from tensorplug_llm.hparams import HParams, HParamsReader, read_hparams

NAME = "modern-bert"
GLOBAL_EVERY = 3
"""The first of three layers sees all of the text."""
LOCAL_BASE = 10000.0
ACTIVATIONS = {"gelu": "geglu_erf", "silu": "swiglu"}


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of a ModernBERT model."""
    hp = read_hparams(file, NAME, rope_mode="neox", norm="norm")
    more = HParamsReader(file, NAME)
    window = more.size_or_0("attention.sliding_window")
    every = more.size("attention.sliding_window_pattern", GLOBAL_EVERY)
    return replace(
        hp,
        causal=more.flag("attention.causal", default=False),
        pooling=hp.pooling or "mean",
        window=window,
        local_layers=frozenset(i for i in range(hp.layers) if window and i % every),
        local_rope=replace(hp.rope, base=more.number("rope.freq_base_swa", LOCAL_BASE)),
        activation=ACTIVATIONS[more.text("hidden_activation", "gelu", tuple(ACTIVATIONS))],
    )


def model_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors outside the layers."""
    return (
        Expected("token_embd.weight", (hp.embedding, hp.vocabulary)),
        *norm_tensors(hp, "token_embd_norm", "output_norm"),
    )


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer; the first one has no norm before its attention."""
    return (
        Expected("attn_norm.weight", (hp.embedding,), optional=True),
        *packed_attention_tensors(hp),
        *norm_tensors(hp, "ffn_norm"),
        *fused_gated_tensors(hp),
    )


def forward(p: Pass) -> Tensor:
    """States of all tokens."""
    x = norm(p, embed(p), "token_embd_norm")
    for i in range(p.hparams.layers):
        first = f"blk.{i}.attn_norm"
        normed = norm(p, x, first) if f"{first}.weight" in p.weights else x
        x = join(p, attention(p, i, normed), x)
        fed = gated(p, i, norm(p, x, f"blk.{i}.ffn_norm"), p.hparams.activation)
        x = join(p, fed, x, name=f"blk.{i}.out")
    return logits(p, x)


MODERN_BERT = Architecture(NAME, read, layer_tensors, forward, model_tensors, generates=False)
