"""Whole forward passes that several architectures share."""

import tensorplug as tp
from tensorplug import Tensor
from tensorplug_llm.arch.architecture import Pass
from tensorplug_llm.arch.blocks import attention, embed, gated, join, logits, norm
from tensorplug_llm.arch.experts import mixture


def pre_norm(p: Pass) -> Tensor:
    """Logits; each block is normed on its way in. SwiGLU, or a mixture of experts."""
    block = gated if p.hparams.experts is None else mixture
    x = embed(p)
    for i in range(p.hparams.layers):
        x = join(p, attention(p, i, norm(p, x, f"blk.{i}.attn_norm")), x)
        x = join(p, block(p, i, norm(p, x, f"blk.{i}.ffn_norm")), x, name=f"blk.{i}.out")
    return logits(p, x)


def sandwich(p: Pass, activation: str) -> Tensor:
    """Logits; each block is normed on its way in and out, before it joins the stream."""
    x = embed(p)
    for i in range(p.hparams.layers):
        block = f"blk.{i}"
        attended = attention(p, i, norm(p, x, f"{block}.attn_norm"))
        x = tp.add(norm(p, attended, f"{block}.post_attention_norm"), x)
        fed = gated(p, i, norm(p, x, f"{block}.ffn_norm"), activation)
        x = tp.add(norm(p, fed, f"{block}.post_ffw_norm"), x, name=f"{block}.out")
    return logits(p, x)
