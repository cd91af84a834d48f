"""GLM-4-0414 (Zhipu 2025, model card GLM-4-9B-0414): norms on both sides of blocks.

A part of each head turns, by neighbouring pairs; gate and up are one matrix.
"""

import numpy as np

from tensorplug import Tensor
from tensorplug.gguf import ModelFile
from tensorplug_llm.arch import passes
from tensorplug_llm.arch.architecture import Architecture, Pass
from tensorplug_llm.arch.tables import (
    Expected,
    attention_tensors,
    fused_gated_tensors,
    norm_tensors,
)
from tensorplug_llm.hparams import HParams, HParamsReader, read_hparams


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of a GLM-4 text model."""
    more = HParamsReader(file, "glm4")
    for name in ("rope.dimension_sections", "nextn_predict_layers"):
        value = np.atleast_1d(np.asarray(file.metadata.get(more.key(name), 0))).tolist()
        if any(value):
            raise more.error(name, value, "models with images or draft layers are not supported")
    return read_hparams(file, "glm4", rope_mode="normal")


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer."""
    return (
        *norm_tensors(hp, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
        *attention_tensors(hp),
        *fused_gated_tensors(hp),
    )


def forward(p: Pass) -> Tensor:
    """Blocks with norms on both sides, and SwiGLU."""
    return passes.sandwich(p, "swiglu")


GLM4 = Architecture("glm4", read, layer_tensors, forward)
