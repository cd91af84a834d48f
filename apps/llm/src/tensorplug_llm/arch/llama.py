"""Llama and its descendants (Touvron et al. 2023, arXiv:2302.13971), Mixtral's experts too.

Pre-norm blocks; neighbouring pairs turn; SwiGLU. Mixtral (Jiang et al. 2024, arXiv:2401.04088) has
a mixture of experts, whose weights are a softmax over those that are taken.
"""

from dataclasses import replace

from tensorplug.gguf import ModelFile
from tensorplug_llm.arch import passes, tables
from tensorplug_llm.arch.architecture import Architecture
from tensorplug_llm.hparams import HParams, HParamsReader, read_experts, read_hparams


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of a llama model."""
    hp = read_hparams(file, "llama", rope_mode="normal", has_experts=True)
    more = HParamsReader(file, "llama")
    return replace(hp, experts=read_experts(more, hp.feed_forward, normalized=True))


LLAMA = Architecture("llama", read, tables.block_tensors, passes.pre_norm)
