"""gpt-oss (OpenAI 2025, arXiv:2508.10925): attention sinks, experts with biases, a clamped SwiGLU.

Every other layer looks at a window only. The router's softmax is over the experts that are taken.
"""

from dataclasses import replace

import tensorplug as tp
from tensorplug import Tensor
from tensorplug.gguf import ModelFile
from tensorplug_llm.arch.architecture import Architecture, Pass
from tensorplug_llm.arch.blocks import attention, embed, linear, logits, norm
from tensorplug_llm.arch.experts import picked, results
from tensorplug_llm.arch.tables import Expected, attention_tensors, expert_tensors, norm_tensors
from tensorplug_llm.hparams import (
    HParams,
    HParamsReader,
    local_layers,
    read_experts,
    read_hparams,
)

NAME = "gpt-oss"
GLOBAL_EVERY = 2


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of a gpt-oss model."""
    hp = read_hparams(file, NAME, rope_mode="neox", has_experts=True)
    more = HParamsReader(file, NAME)
    more.used_experts()
    inner = more.size("expert_feed_forward_length")
    return replace(
        hp,
        window=more.size("attention.sliding_window"),
        local_layers=local_layers(more, hp.layers, GLOBAL_EVERY),
        local_rope=replace(hp.rope, base=more.number("rope.freq_base_swa", hp.rope.base)),
        experts=read_experts(more, inner, normalized=False),
    )


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer."""
    assert hp.experts is not None
    count, inner = hp.experts.count, hp.experts.feed_forward
    return (
        *norm_tensors(hp, "attn_norm", "post_attention_norm"),
        *attention_tensors(hp),
        Expected("attn_sinks.weight", (hp.heads,)),
        *expert_tensors(hp, hp.experts),
        Expected("ffn_gate_exps.bias", (inner, count)),
        Expected("ffn_up_exps.bias", (inner, count)),
        Expected("ffn_down_exps.bias", (hp.embedding, count)),
    )


def forward(p: Pass) -> Tensor:
    """Pre-norm blocks; the norm before the experts is called `post_attention_norm`."""
    x = embed(p)
    for i in range(p.hparams.layers):
        x = tp.add(attention(p, i, norm(p, x, f"blk.{i}.attn_norm")), x)
        y = _experts(p, f"blk.{i}", norm(p, x, f"blk.{i}.post_attention_norm"))
        x = tp.add(y, x, name=f"blk.{i}.out")
    return logits(p, x)


def _experts(p: Pass, block: str, x: Tensor) -> Tensor:
    assert p.hparams.experts is not None
    scores = linear(p, x, f"{block}.ffn_gate_inp")
    ids = tp.top_k(scores, p.hparams.experts.used, name=f"{block}.ffn_experts")
    weights = tp.soft_max(picked(p, scores, ids))
    return results(p, block, x, ids, weights, tp.swiglu_oai)


GPT_OSS = Architecture(NAME, read, layer_tensors, forward)
