"""Qwen 1.5 and 2 with experts (model card Qwen1.5-MoE-A2.7B): a shared expert behind a gate.

As Qwen 2, but the weights of experts are not divided by their sum.
"""

from dataclasses import replace

from tensorplug.gguf import ModelFile
from tensorplug_llm.arch import passes
from tensorplug_llm.arch.architecture import Architecture
from tensorplug_llm.arch.tables import Expected, block_tensors
from tensorplug_llm.hparams import HParams, HParamsReader, read_experts, read_hparams


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of a Qwen 2 model with experts."""
    hp = read_hparams(file, "qwen2moe", rope_mode="neox", has_experts=True)
    more = HParamsReader(file, "qwen2moe")
    inner = more.size("expert_feed_forward_length", hp.feed_forward // more.used_experts())
    shared = more.size("expert_shared_feed_forward_length", hp.feed_forward)
    experts = read_experts(more, inner, normalized=False, shared_feed_forward=shared)
    return replace(hp, experts=experts)


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer."""
    return (*block_tensors(hp), Expected("ffn_gate_inp_shexp.weight", (hp.embedding,)))


QWEN2MOE = Architecture("qwen2moe", read, layer_tensors, passes.pre_norm)
