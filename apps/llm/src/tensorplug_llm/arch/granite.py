"""Granite 3 (IBM 2024, model card granite-3.0-8b-base): llama's blocks with four factors.

Embeddings, attention scores, the results of blocks and logits are scaled. Granite 4 may turn
nothing (`rope.scaling.finetuned` is false).
"""

from dataclasses import replace

from tensorplug.gguf import ModelFile
from tensorplug_llm.arch import passes, tables
from tensorplug_llm.arch.architecture import Architecture
from tensorplug_llm.hparams import HParams, HParamsReader, read_experts, read_hparams


def read_granite(file: ModelFile, architecture: str) -> HParams:
    """Hyper-parameters of a Granite model, dense or with experts."""
    hp = read_hparams(file, architecture, rope_mode="normal", has_experts=True)
    more = HParamsReader(file, architecture)
    shared = more.size_or_0("expert_shared_feed_forward_length")
    turned = more.flag("rope.scaling.finetuned", default=True)
    return replace(
        hp,
        embedding_scale=more.number_or_0("embedding_scale") or 1.0,
        residual_scale=more.number_or_0("residual_scale") or 1.0,
        attention_scale=more.number_or_0("attention.scale") or hp.attention_scale,
        logit_scale=1.0 / more.number("logit_scale"),
        unturned_layers=frozenset() if turned else frozenset(range(hp.layers)),
        experts=read_experts(more, hp.feed_forward, normalized=True, shared_feed_forward=shared),
    )


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of a dense Granite model."""
    return read_granite(file, "granite")


GRANITE = Architecture("granite", read, tables.block_tensors, passes.pre_norm)
