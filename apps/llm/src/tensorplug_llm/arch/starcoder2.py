"""StarCoder2 (Lozhkov et al. 2024, arXiv:2402.19173): layer norms, biases, GELU without a gate."""

from functools import partial

import tensorplug as tp
from tensorplug import Tensor
from tensorplug_llm.arch.architecture import Architecture, Pass
from tensorplug_llm.arch.blocks import attention, embed, linear, logits, norm
from tensorplug_llm.arch.tables import Expected, attention_tensors, linear_tensors
from tensorplug_llm.arch.tables import model_tensors as usual_tensors
from tensorplug_llm.hparams import HParams, read_hparams

read = partial(read_hparams, architecture="starcoder2", rope_mode="neox", norm="norm")


def _with_bias(hp: HParams, name: str) -> tuple[Expected, ...]:
    return tuple(Expected(f"{name}.{kind}", (hp.embedding,)) for kind in ("weight", "bias"))


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer."""
    return (
        *_with_bias(hp, "attn_norm"),
        *attention_tensors(hp),
        *_with_bias(hp, "ffn_norm"),
        *linear_tensors("ffn_up", hp.embedding, hp.feed_forward),
        *linear_tensors("ffn_down", hp.feed_forward, hp.embedding),
    )


def model_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors outside the layers."""
    return (*usual_tensors(hp), Expected("output_norm.bias", (hp.embedding,)))


def forward(p: Pass) -> Tensor:
    """Pre-norm blocks; the feed-forward block is two matrices with GELU between them."""
    x = embed(p)
    for i in range(p.hparams.layers):
        block = f"blk.{i}"
        x = tp.add(attention(p, i, norm(p, x, f"{block}.attn_norm")), x)
        y = tp.gelu(linear(p, norm(p, x, f"{block}.ffn_norm"), f"{block}.ffn_up"))
        x = tp.add(linear(p, y, f"{block}.ffn_down"), x, name=f"{block}.out")
    return logits(p, x)


STARCODER2 = Architecture("starcoder2", read, layer_tensors, forward, model_tensors)
