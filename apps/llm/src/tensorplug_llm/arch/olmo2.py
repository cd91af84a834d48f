"""OLMo 2 (OLMo Team 2024, arXiv:2501.00656): norms only behind each block, and over whole q and k.

OLMo 3 has layers that look at a window only, whose positions are not stretched.
"""

from dataclasses import replace

import tensorplug as tp
from tensorplug import Tensor
from tensorplug.gguf import ModelFile
from tensorplug_llm.arch.architecture import Architecture, Pass
from tensorplug_llm.arch.blocks import attention, embed, gated, logits, norm
from tensorplug_llm.arch.tables import (
    Expected,
    attention_tensors,
    gated_tensors,
    norm_tensors,
    row_norm_tensors,
)
from tensorplug_llm.hparams import HParams, HParamsReader, local_layers, read_hparams

GLOBAL_EVERY = 4


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of an OLMo 2 or 3 model."""
    hp = read_hparams(file, "olmo2", rope_mode="neox")
    more = HParamsReader(file, "olmo2")
    window = more.size_or_0("attention.sliding_window")
    return replace(
        hp,
        window=window,
        local_layers=local_layers(more, hp.layers, GLOBAL_EVERY) if window else frozenset(),
        local_rope=replace(hp.rope, scale=1.0, ext_factor=0.0, attn_factor=1.0),
    )


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer."""
    return (
        *attention_tensors(hp),
        *row_norm_tensors(hp),
        *gated_tensors(hp),
        *norm_tensors(hp, "post_attention_norm", "post_ffw_norm"),
    )


def forward(p: Pass) -> Tensor:
    """Each block is normed on its way out only."""
    x = embed(p)
    for i in range(p.hparams.layers):
        block = f"blk.{i}"
        x = tp.add(norm(p, attention(p, i, x), f"{block}.post_attention_norm"), x)
        x = tp.add(norm(p, gated(p, i, x), f"{block}.post_ffw_norm"), x, name=f"{block}.out")
    return logits(p, x)


OLMO2 = Architecture("olmo2", read, layer_tensors, forward)
