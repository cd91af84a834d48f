"""Qwen 2 and 3: llama's blocks, but halves turn; 2 has biases, 3 norms the heads."""

from tensorplug.gguf import GGUFFile
from tensorplug_llm.arch.common import Architecture, Expected, block_tensors, head_norm_tensors
from tensorplug_llm.arch.llama import forward
from tensorplug_llm.hparams import HParams, read_hparams


def read_qwen2(file: GGUFFile) -> HParams:
    """Hyper-parameters of a Qwen 2 model."""
    return read_hparams(file, "qwen2", rope_mode="neox")


def read_qwen3(file: GGUFFile) -> HParams:
    """Hyper-parameters of a Qwen 3 model."""
    return read_hparams(file, "qwen3", rope_mode="neox")


def qwen3_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer of a Qwen 3 model."""
    return (*block_tensors(hp), *head_norm_tensors(hp))


QWEN2 = Architecture("qwen2", read_qwen2, block_tensors, forward)
QWEN3 = Architecture("qwen3", read_qwen3, qwen3_tensors, forward)
