"""Gemma 3 (Gemma Team 2025, arXiv:2503.19786): layers that look at a window only; heads are normed.

Norms before and after each block, GeGLU, and other rotary frequencies in layers with a window.
"""

import math
from dataclasses import replace

from tensorplug import Tensor
from tensorplug.gguf import GGUFFile
from tensorplug_llm.arch import passes
from tensorplug_llm.arch.architecture import Architecture, Pass
from tensorplug_llm.arch.tables import Expected, block_tensors, head_norm_tensors, norm_tensors
from tensorplug_llm.hparams import HParams, HParamsReader, local_layers, read_hparams

GLOBAL_EVERY = 6
"""Every sixth layer sees all of the context, unless the file has another pattern."""
LOCAL_BASE = 10000.0
LAYERS_OF_27B = 62


def read(file: GGUFFile) -> HParams:
    """Hyper-parameters of a Gemma 3 text model."""
    hp = read_hparams(file, "gemma3", rope_mode="neox")
    more = HParamsReader(file, "gemma3")
    window = more.size_or_0("attention.sliding_window")
    # Only the 27B model scales by the embedding's share of a head instead of the head's own size.
    is_27b = hp.layers == LAYERS_OF_27B
    scaled_by = hp.embedding // hp.heads if is_27b else hp.key_length
    return replace(
        hp,
        embedding_scale=math.sqrt(hp.embedding),
        attention_scale=1.0 / math.sqrt(scaled_by),
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


def forward(p: Pass) -> Tensor:
    """Blocks with norms on both sides, and GeGLU."""
    return passes.sandwich(p, "geglu")


GEMMA3 = Architecture("gemma3", read, layer_tensors, forward)
