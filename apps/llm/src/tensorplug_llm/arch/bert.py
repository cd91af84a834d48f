"""BERT (Devlin et al. 2018, arXiv:1810.04805), XLM-RoBERTa and Nomic BERT: encoders.

Tokens see all of their text. Norms follow the blocks. BERT adds a row for each position and has
GELU; Nomic BERT (Nussbaum et al. 2024, arXiv:2402.01613) turns queries and keys and has SwiGLU.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import tensorplug as tp
from tensorplug import Tensor
from tensorplug.errors import FormatError
from tensorplug.gguf import ModelFile
from tensorplug_llm.arch.architecture import Architecture, Pass
from tensorplug_llm.arch.blocks import attention, embed, gated, linear, norm
from tensorplug_llm.arch.tables import (
    Expected,
    attention_tensors,
    gated_tensors,
    linear_tensors,
    packed_attention_tensors,
)
from tensorplug_llm.hparams import (
    MOST_EMBEDDING,
    HParams,
    HParamsReader,
    read_hparams,
    read_labels,
)

TYPES = "tokenizer.ggml.token_type_count"


def read(file: ModelFile, architecture: str) -> HParams:
    """Hyper-parameters of an encoder."""
    hp = read_hparams(file, architecture, rope_mode="neox", norm="norm")
    has_positions = architecture == "bert"
    return replace(
        hp,
        causal=HParamsReader(file, architecture).flag("attention.causal", default=False),
        unturned_layers=frozenset(range(hp.layers)) if has_positions else frozenset(),
        labels=read_labels(HParamsReader(file, architecture)) if hp.pooling == "rank" else 0,
        token_types=_token_types(file),
    )


def _token_types(file: ModelFile) -> int:
    count = file.require(TYPES, int)
    if not 0 < count <= MOST_EMBEDDING:
        raise FormatError(
            f"{file.path}: metadata {TYPES!r} is {count}, and it must be between 1 and "
            f"{MOST_EMBEDDING}; the model is damaged"
        )
    return count


def _norm_tensors(hp: HParams, name: str) -> tuple[Expected, ...]:
    return (
        Expected(f"{name}.weight", (hp.embedding,)),
        Expected(f"{name}.bias", (hp.embedding,), optional=True),
    )


def model_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors outside the layers: tables, and the head of a reranker."""
    size = hp.embedding
    found = [
        Expected("token_embd.weight", (size, hp.vocabulary)),
        Expected("token_types.weight", (size, hp.token_types), optional=True),
        *_norm_tensors(hp, "token_embd_norm"),
    ]
    if hp.architecture == "bert":
        found.append(Expected("position_embd.weight", (size, hp.context)))
    if hp.labels:
        found += [
            Expected("cls.weight", (size, size), optional=True),
            Expected("cls.bias", (size,), optional=True),
            *linear_tensors("cls.output", size, hp.labels),
        ]
    return tuple(found)


def _layer_norm_tensors(hp: HParams) -> tuple[Expected, ...]:
    return (*_norm_tensors(hp, "attn_output_norm"), *_norm_tensors(hp, "layer_output_norm"))


def bert_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer of BERT."""
    return (
        *attention_tensors(hp),
        *_layer_norm_tensors(hp),
        *linear_tensors("ffn_up", hp.embedding, hp.feed_forward),
        *linear_tensors("ffn_down", hp.feed_forward, hp.embedding),
    )


def nomic_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer of Nomic BERT; queries, keys and values are one matrix."""
    return (
        *packed_attention_tensors(hp),
        *_layer_norm_tensors(hp),
        *gated_tensors(hp),
    )


def forward(p: Pass, block: Callable[[Pass, int, Tensor], Tensor]) -> Tensor:
    """States of all tokens; each block is normed after it joined the stream."""
    x = embed(p)
    if "token_types.weight" in p.weights:
        assert p.inputs.types is not None, "encoders are told the kinds of tokens"
        x = tp.add(x, tp.get_rows(p.weights["token_types.weight"], p.inputs.types))
    if "position_embd.weight" in p.weights:
        x = tp.add(x, tp.get_rows(p.weights["position_embd.weight"], p.inputs.positions))
    x = norm(p, x, "token_embd_norm")
    for i in range(p.hparams.layers):
        x = norm(p, tp.add(attention(p, i, x), x), f"blk.{i}.attn_output_norm")
        x = norm(p, tp.add(block(p, i, x), x), f"blk.{i}.layer_output_norm")
    return x


def gelu(p: Pass, layer: int, x: Tensor) -> Tensor:
    """Two matrices with GELU between them."""
    y = tp.gelu_erf(linear(p, x, f"blk.{layer}.ffn_up"))
    return linear(p, y, f"blk.{layer}.ffn_down")


BERT = Architecture(
    "bert",
    partial(read, architecture="bert"),
    bert_tensors,
    partial(forward, block=gelu),
    model_tensors,
    generates=False,
)
NOMIC_BERT = Architecture(
    "nomic-bert",
    partial(read, architecture="nomic-bert"),
    nomic_tensors,
    partial(forward, block=gated),
    model_tensors,
    generates=False,
)
