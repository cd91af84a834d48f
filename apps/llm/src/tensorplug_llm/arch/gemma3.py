"""Gemma 3: norms before and after each block, GeGLU, and layers that look at a window only."""

import math
from dataclasses import replace

import numpy as np

import tensorplug as tp
from tensorplug import Tensor
from tensorplug.gguf import GGUFFile
from tensorplug_llm.arch.common import (
    Architecture,
    Expected,
    Pass,
    attention,
    block_tensors,
    embed,
    gated,
    head_norm_tensors,
    logits,
    norm,
)
from tensorplug_llm.hparams import HParams, HParamsReader, read_hparams

GLOBAL_EVERY = 6
"""Every sixth layer sees all of the context, unless the file has another pattern."""
LOCAL_BASE = 10000.0
LAYERS_OF_27B = 62


def read(file: GGUFFile) -> HParams:
    """Hyper-parameters of a Gemma 3 text model."""
    hp = read_hparams(file, "gemma3", rope_mode="neox")
    more = HParamsReader(file, "gemma3")
    window = more.size_or_0("attention.sliding_window")
    # The 27B model alone scales by the embedding's share of a head instead of the head's own size.
    is_27b = hp.layers == LAYERS_OF_27B
    scaled_by = hp.embedding // hp.heads if is_27b else hp.key_length
    return replace(
        hp,
        embedding_scale=math.sqrt(hp.embedding),
        attention_scale=1.0 / math.sqrt(scaled_by),
        logit_softcap=more.number_or_0("final_logit_softcapping"),
        window=window,
        local_layers=_local_layers(more, hp.layers) if window else frozenset(),
        local_rope=replace(hp.rope, base=more.number("rope.freq_base_swa", LOCAL_BASE), scale=1.0),
    )


def _local_layers(read: HParamsReader, layers: int) -> frozenset[int]:
    name = "attention.sliding_window_pattern"
    pattern = read.file.metadata.get(read.key(name))
    if isinstance(pattern, np.ndarray):
        if pattern.size < layers:
            raise read.error(name, pattern.tolist(), f"it must say so for all {layers} layers")
        return frozenset(np.flatnonzero(pattern[:layers]).tolist())
    every = read.size(name, GLOBAL_EVERY)
    return frozenset(i for i in range(layers) if i % every < every - 1)


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer."""
    return (
        *block_tensors(hp),
        *head_norm_tensors(hp),
        Expected("post_attention_norm.weight", (hp.embedding,)),
        Expected("post_ffw_norm.weight", (hp.embedding,)),
    )


def forward(p: Pass) -> Tensor:
    """Each block is normed on its way in and out, before it joins the stream."""
    x = embed(p)
    for i in range(p.hparams.layers):
        block = f"blk.{i}"
        attended = attention(p, i, norm(p, x, f"{block}.attn_norm"))
        x = tp.add(norm(p, attended, f"{block}.post_attention_norm"), x)
        fed = gated(p, i, norm(p, x, f"{block}.ffn_norm"), "geglu")
        x = tp.add(norm(p, fed, f"{block}.post_ffw_norm"), x, name=f"{block}.out")
    return logits(p, x)


GEMMA3 = Architecture("gemma3", read, layer_tensors, forward)
