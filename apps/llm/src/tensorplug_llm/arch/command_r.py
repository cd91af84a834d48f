"""Command R (Cohere 2024, model card c4ai-command-r-v01): both blocks of a layer read one norm.

Layer norms without biases; neighbouring pairs turn; logits are scaled. Command R+ norms heads.
"""

from dataclasses import replace

import tensorplug as tp
from tensorplug import Tensor
from tensorplug.gguf import ModelFile
from tensorplug_llm.arch.architecture import Architecture, Pass
from tensorplug_llm.arch.blocks import attention, embed, gated, logits, norm
from tensorplug_llm.arch.tables import Expected, attention_tensors, gated_tensors, norm_tensors
from tensorplug_llm.hparams import HParams, HParamsReader, read_hparams

NORMS_HEADS = 64
"""Models of at least 64 layers norm the heads of queries and keys, each by its own weights."""


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of a Command R model."""
    hp = read_hparams(file, "command-r", rope_mode="normal", norm="norm")
    scale = HParamsReader(file, "command-r").number_or_0("logit_scale") or 1.0
    return replace(hp, logit_scale=scale)


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer."""
    heads = (
        Expected("attn_q_norm.weight", (hp.key_length, hp.heads)),
        Expected("attn_k_norm.weight", (hp.key_length, hp.kv_heads)),
    )
    return (
        *norm_tensors(hp, "attn_norm"),
        *attention_tensors(hp),
        *(heads if hp.layers >= NORMS_HEADS else ()),
        *gated_tensors(hp),
    )


def forward(p: Pass) -> Tensor:
    """Attention and the feed-forward block join the stream together."""
    x = embed(p)
    for i in range(p.hparams.layers):
        normed = norm(p, x, f"blk.{i}.attn_norm")
        x = tp.add(tp.add(gated(p, i, normed), x), attention(p, i, normed), name=f"blk.{i}.out")
    return logits(p, x)


COMMAND_R = Architecture("command-r", read, layer_tensors, forward)
