"""Gemma 3 (Gemma Team 2025, arXiv:2503.19786): layers that look at a window only; heads are normed.

Norms before and after each block, GeGLU, and other rotary frequencies in layers with a window.
"""

import math
from dataclasses import replace

from tensorplug.gguf import ModelFile
from tensorplug_llm.arch.architecture import Architecture
from tensorplug_llm.arch.gemma2 import attention_scale, forward
from tensorplug_llm.arch.tables import Expected, block_tensors, head_norm_tensors, norm_tensors
from tensorplug_llm.hparams import HParams, HParamsReader, local_layers, read_hparams

GLOBAL_EVERY = 6
"""Every sixth layer sees all of the context, unless the file has another pattern."""
LOCAL_BASE = 10000.0
LAYERS_OF_27B = 62


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of a Gemma 3 text model."""
    hp = read_hparams(file, "gemma3", rope_mode="neox")
    more = HParamsReader(file, "gemma3")
    window = more.size_or_0("attention.sliding_window")
    return replace(
        hp,
        embedding_scale=math.sqrt(hp.embedding),
        attention_scale=attention_scale(hp, LAYERS_OF_27B),
        logit_softcap=more.number_or_0("final_logit_softcapping"),
        window=window,
        local_layers=local_layers(more, hp.layers, GLOBAL_EVERY) if window else frozenset(),
        local_rope=replace(hp.rope, base=more.number("rope.freq_base_swa", LOCAL_BASE), scale=1.0),
    )


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer."""
    return (
        *block_tensors(hp),
        *head_norm_tensors(hp),
        *norm_tensors(hp, "post_attention_norm", "post_ffw_norm"),
    )


GEMMA3 = Architecture("gemma3", read, layer_tensors, forward)
