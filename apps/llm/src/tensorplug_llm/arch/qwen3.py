"""Qwen 3 (Yang et al. 2025, arXiv:2505.09388): as Qwen 2, but heads are normed; no biases."""

from functools import partial

from tensorplug_llm.arch import passes
from tensorplug_llm.arch.architecture import Architecture
from tensorplug_llm.arch.tables import Expected, block_tensors, head_norm_tensors
from tensorplug_llm.hparams import HParams, read_hparams

read = partial(read_hparams, architecture="qwen3", rope_mode="neox")


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer."""
    return (*block_tensors(hp), *head_norm_tensors(hp))


QWEN3 = Architecture("qwen3", read, layer_tensors, passes.pre_norm)
