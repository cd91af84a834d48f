"""Qwen 3 with experts (Yang et al. 2025, arXiv:2505.09388), whose weights add up to one."""

from dataclasses import replace

from tensorplug.gguf import ModelFile
from tensorplug_llm.arch import passes
from tensorplug_llm.arch.architecture import Architecture
from tensorplug_llm.arch.tables import Expected, block_tensors, head_norm_tensors
from tensorplug_llm.hparams import HParams, HParamsReader, read_experts, read_hparams


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of a Qwen 3 model with experts."""
    hp = read_hparams(file, "qwen3moe", rope_mode="neox", has_experts=True)
    more = HParamsReader(file, "qwen3moe")
    inner = more.size("expert_feed_forward_length", hp.feed_forward // more.used_experts())
    return replace(hp, experts=read_experts(more, inner, normalized=True))


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer."""
    return (*block_tensors(hp), *head_norm_tensors(hp))


QWEN3MOE = Architecture("qwen3moe", read, layer_tensors, passes.pre_norm)
