"""Qwen 3 (Yang et al. 2025, arXiv:2505.09388): as Qwen 2, but heads are normed; no biases.

A reranker has a matrix for the scores of a pair's last token.
"""

from dataclasses import replace

from tensorplug.gguf import ModelFile
from tensorplug_llm.arch import passes, tables
from tensorplug_llm.arch.architecture import Architecture
from tensorplug_llm.arch.tables import Expected, block_tensors, head_norm_tensors, linear_tensors
from tensorplug_llm.hparams import HParams, HParamsReader, read_hparams, read_labels


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of a Qwen 3 model."""
    hp = read_hparams(file, "qwen3", rope_mode="neox")
    is_reranker = hp.pooling == "rank"
    return replace(hp, labels=read_labels(HParamsReader(file, "qwen3")) if is_reranker else 0)


def model_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors outside the layers."""
    scores = linear_tensors("cls.output", hp.embedding, hp.labels) if hp.labels else ()
    return (*tables.model_tensors(hp), *scores)


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer."""
    return (*block_tensors(hp), *head_norm_tensors(hp))


QWEN3 = Architecture("qwen3", read, layer_tensors, passes.pre_norm, model_tensors)
