"""Qwen 2 (Yang et al. 2024, arXiv:2407.10671): llama's blocks; halves turn; q, k, v have biases."""

from functools import partial

from tensorplug_llm.arch import passes, tables
from tensorplug_llm.arch.architecture import Architecture
from tensorplug_llm.hparams import read_hparams

read = partial(read_hparams, architecture="qwen2", rope_mode="neox")

QWEN2 = Architecture("qwen2", read, tables.block_tensors, passes.pre_norm)
