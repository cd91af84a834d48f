"""Phi-3 and Phi-4 (Abdin et al. 2024, arXiv:2404.14219): llama's blocks with fused matrices.

Queries, keys and values are one matrix, gate and up another; halves turn. Long contexts have
factors of their own for the rotary frequencies (LongRoPE, Ding et al. 2024, arXiv:2402.13753).
"""

from functools import partial

from tensorplug_llm.arch import passes
from tensorplug_llm.arch.architecture import Architecture
from tensorplug_llm.arch.tables import (
    Expected,
    fused_gated_tensors,
    long_context_tensors,
    norm_tensors,
    packed_attention_tensors,
)
from tensorplug_llm.arch.tables import model_tensors as usual_tensors
from tensorplug_llm.hparams import HParams, read_hparams

# Files give a window too, but llama.cpp sees all of the context, and so does this.
read = partial(read_hparams, architecture="phi3", rope_mode="neox")


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer."""
    return (
        *norm_tensors(hp, "attn_norm", "ffn_norm"),
        *packed_attention_tensors(hp),
        *fused_gated_tensors(hp),
    )


def model_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors outside the layers."""
    return (*usual_tensors(hp), *long_context_tensors(hp))


PHI3 = Architecture("phi3", read, layer_tensors, passes.pre_norm, model_tensors)
