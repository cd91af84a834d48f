"""Gemma 2 (Gemma Team 2024, arXiv:2408.00118): scores and logits are capped.

Every other layer looks at a window only. Norms before and after each block, GeGLU.
"""

import math
from dataclasses import replace

from tensorplug import Tensor
from tensorplug.gguf import ModelFile
from tensorplug_llm.arch import passes
from tensorplug_llm.arch.architecture import Architecture, Pass
from tensorplug_llm.arch.tables import Expected, block_tensors, norm_tensors
from tensorplug_llm.hparams import HParams, HParamsReader, local_layers, read_hparams

WINDOW = 4096
GLOBAL_EVERY = 2
SCORE_CAP, LOGIT_CAP = 50.0, 30.0
LAYERS_OF_27B = 46


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of a Gemma 2 model."""
    hp = read_hparams(file, "gemma2", rope_mode="neox")
    more = HParamsReader(file, "gemma2")
    return replace(
        hp,
        embedding_scale=math.sqrt(hp.embedding),
        attention_scale=attention_scale(hp, LAYERS_OF_27B),
        attention_softcap=more.number("attn_logit_softcapping", SCORE_CAP),
        logit_softcap=more.number("final_logit_softcapping", LOGIT_CAP),
        window=more.size("attention.sliding_window", WINDOW),
        local_layers=local_layers(more, hp.layers, GLOBAL_EVERY),
        local_rope=replace(hp.rope, base=more.number("rope.freq_base_swa", hp.rope.base)),
    )


def attention_scale(hp: HParams, layers_of_27b: int) -> float:
    """Only the 27B model scales by the embedding's share of a head, not by the head's own size."""
    is_27b = hp.layers == layers_of_27b
    return 1.0 / math.sqrt(hp.embedding // hp.heads if is_27b else hp.key_length)


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer."""
    return (*block_tensors(hp), *norm_tensors(hp, "post_attention_norm", "post_ffw_norm"))


def forward(p: Pass) -> Tensor:
    """Blocks with norms on both sides, and GeGLU."""
    return passes.sandwich(p, "geglu")


GEMMA2 = Architecture("gemma2", read, layer_tensors, forward)
