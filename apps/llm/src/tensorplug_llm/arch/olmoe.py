"""OLMoE (Muennighoff et al. 2024, arXiv:2409.02060): experts; norms over whole q and k.

The weights of experts are not divided by their sum.
"""

from dataclasses import replace

from tensorplug.gguf import ModelFile
from tensorplug_llm.arch import passes
from tensorplug_llm.arch.architecture import Architecture
from tensorplug_llm.arch.tables import Expected, block_tensors, row_norm_tensors
from tensorplug_llm.hparams import HParams, HParamsReader, read_experts, read_hparams


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of an OLMoE model."""
    hp = read_hparams(file, "olmoe", rope_mode="neox", has_experts=True)
    more = HParamsReader(file, "olmoe")
    return replace(hp, experts=read_experts(more, hp.feed_forward, normalized=False))


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer."""
    return (*block_tensors(hp), *row_norm_tensors(hp))


OLMOE = Architecture("olmoe", read, layer_tensors, passes.pre_norm)
