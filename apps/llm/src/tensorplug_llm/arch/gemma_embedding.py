"""EmbeddingGemma (Google 2025, arXiv:2509.20354): Gemma 3 as an encoder.

Tokens see all of their text, or the window around them; two matrices follow the mean.
"""

import math
from dataclasses import replace

from tensorplug.gguf import ModelFile
from tensorplug_llm.arch import tables
from tensorplug_llm.arch.architecture import Architecture
from tensorplug_llm.arch.gemma2 import forward
from tensorplug_llm.arch.gemma3 import GLOBAL_EVERY, LOCAL_BASE, layer_tensors
from tensorplug_llm.arch.tables import Expected
from tensorplug_llm.hparams import (
    MOST_EMBEDDING,
    HParams,
    HParamsReader,
    local_layers,
    read_hparams,
)

NAME = "gemma-embedding"


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of an EmbeddingGemma model."""
    hp = read_hparams(file, NAME, rope_mode="neox")
    more = HParamsReader(file, NAME)
    return replace(
        hp,
        causal=False,
        pooling=hp.pooling or "mean",
        embedding_scale=math.sqrt(hp.embedding),
        window=more.size("attention.sliding_window"),
        local_layers=local_layers(more, hp.layers, GLOBAL_EVERY),
        local_rope=replace(hp.rope, base=more.number("rope.freq_base_swa", LOCAL_BASE), scale=1.0),
        dense=more.size("dense_2_feat_out", hp.embedding, most=MOST_EMBEDDING),
    )


def model_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors outside the layers."""
    return (
        *tables.model_tensors(hp),
        Expected("dense_2.weight", (hp.embedding, hp.dense), optional=True),
        Expected("dense_3.weight", (hp.dense, hp.embedding), optional=True),
    )


GEMMA_EMBEDDING = Architecture(NAME, read, layer_tensors, forward, model_tensors, generates=False)
