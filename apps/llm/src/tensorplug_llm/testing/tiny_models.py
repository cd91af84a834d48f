"""Tiny random language models as GGUF files, the same ones at every call: for tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, TokenType

from tensorplug_llm.arch import Expected, architecture
from tensorplug_llm.testing.random_models import write_random

BYTES = 256
POSITIONS = 24
"""Tokens of the prompt of each model."""
RECORDED = (0, 1, 3, 7, 15, 23)
"""Positions whose logits are recorded."""

SIZES: Mapping[str, Any] = {
    "context_length": 256,
    "embedding_length": 64,
    "block_count": 3,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.dimension_count": 16,
    "rope.freq_base": 50000.0,
}


@dataclass(frozen=True)
class TinyModel:
    """A model: metadata of its architecture beyond SIZES, and which optional tensors it has."""

    architecture: str
    tokenizer: str = "spm"
    more: Mapping[str, Any] = field(default_factory=dict)
    has: tuple[str, ...] = ()
    """Patterns of names of optional tensors."""
    weights: GGMLQuantizationType = GGMLQuantizationType.F32
    """The type of matrices whose name matches `packed`; all others are f32."""
    packed: str = "*"

    @property
    def sizes(self) -> dict[str, Any]:
        """Metadata of the architecture, without its name before the keys."""
        return {**SIZES, **self.more}


def _heads(length: int, heads: int, kv_heads: int, **more: Any) -> dict[str, Any]:
    """Heads of `length` elements, which fill the stream."""
    return {
        "embedding_length": length * heads,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": length,
        "attention.value_length": length,
        "rope.dimension_count": length,
        **more,
    }


def _wide(length: int) -> dict[str, Any]:
    """Heads of `length` elements, whatever the stream has."""
    return {f"{name}_length": length for name in ("attention.key", "attention.value")} | {
        "rope.dimension_count": length
    }


_ODD = _heads(12, 6, 3, feed_forward_length=88)
"""Sizes that are multiples of 4 only."""
_UNTIED = ("output.weight",)
_BIASED = ("*.attn_[qkv].bias",)
_ALL_BIASED = ("blk.*.bias",)
_YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
_LAYER_NORM = {"attention.layer_norm_epsilon": 1e-5}
_GEMMA2 = {
    "block_count": 4,
    "attention.sliding_window": 8,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 4.0,
}
_GRANITE = {
    "embedding_scale": 3.0,
    "residual_scale": 0.4,
    "attention.scale": 0.15,
    "logit_scale": 2.5,
}
_LONG = {
    "rope.scaling.type": "longrope",
    "rope.scaling.original_context_length": 64,
    "rope.scaling.attn_factor": 1.2,
}


def _experts(count: int, used: int, **more: Any) -> dict[str, Any]:
    return {"expert_count": count, "expert_used_count": used, **more}


_GPT_OSS = {
    "block_count": 4,
    "attention.sliding_window": 8,
    "expert_feed_forward_length": 64,
    **_experts(8, 2),
    **_YARN,
}

_MAMBA2 = {
    "attention.head_count": 0,
    "attention.head_count_kv": 0,
    "feed_forward_length": 0,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 128,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 8,
    "ssm.group_count": 1,
}

_LFM2 = {
    "block_count": 5,
    "attention.head_count_kv": [0, 0, 2, 0, 2],
    "shortconv.l_cache": 3,
}
_QWEN3NEXT = {
    "block_count": 4,
    "rope.dimension_count": 4,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 64,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
    **_experts(8, 2, expert_feed_forward_length=32, expert_shared_feed_forward_length=48),
}

TINY_MODELS = {
    "llama": TinyModel("llama", has=_UNTIED),
    "llama-bpe": TinyModel("llama", "bpe", has=("rope_freqs.weight",)),
    "llama-q8_0": TinyModel("llama", weights=GGMLQuantizationType.Q8_0),
    "llama-q4_0": TinyModel("llama", "bpe", weights=GGMLQuantizationType.Q4_0, has=_UNTIED),
    "llama-f16": TinyModel("llama", weights=GGMLQuantizationType.F16),
    "llama-yarn": TinyModel("llama", more={**_ODD, **_YARN}, has=_ALL_BIASED),
    "llama-experts": TinyModel("llama", more=_experts(8, 2), has=_UNTIED),
    "llama-experts-odd": TinyModel("llama", "bpe", more={**_ODD, **_experts(6, 3)}),
    "command-r": TinyModel("command-r", "bpe", more={**_LAYER_NORM, "logit_scale": 0.25}),
    "command-r-odd": TinyModel("command-r", "bpe", more={**_ODD, **_LAYER_NORM}),
    "command-r-plus": TinyModel(
        "command-r",
        "bpe",
        more={
            **_heads(16, 2, 1, feed_forward_length=32),
            **_LAYER_NORM,
            "block_count": 64,
            "logit_scale": 0.8,
        },
    ),
    "gemma2": TinyModel("gemma2", more={**_GEMMA2, **_wide(32)}),
    "gemma2-odd": TinyModel("gemma2", more={**_ODD, **_GEMMA2, **_wide(20)}),
    "gemma3": TinyModel(
        "gemma3",
        more={
            "block_count": 8,
            "attention.head_count_kv": 1,
            "attention.sliding_window": 8,
            **_wide(32),
        },
    ),
    "glm4": TinyModel("glm4", "bpe", more={"rope.dimension_count": 8}, has=_BIASED),
    "glm4-odd": TinyModel("glm4", "bpe", more={**_ODD, "rope.dimension_count": 6}, has=_UNTIED),
    "gpt-oss": TinyModel(
        "gpt-oss",
        "bpe",
        more=_GPT_OSS,
        has=(*_ALL_BIASED, *_UNTIED),
        weights=GGMLQuantizationType.MXFP4,
        packed="*_exps.weight",
    ),
    "gpt-oss-odd": TinyModel(
        "gpt-oss",
        "bpe",
        more={**_ODD, **_GPT_OSS, "expert_feed_forward_length": 40},
        has=(*_ALL_BIASED, *_UNTIED),
    ),
    "granite": TinyModel("granite", "bpe", more=_GRANITE),
    "granite-odd": TinyModel(
        "granite",
        "bpe",
        more={**_ODD, **_GRANITE, "rope.scaling.finetuned": False},
        has=_UNTIED,
    ),
    "granitemoe": TinyModel("granitemoe", "bpe", more={**_GRANITE, **_experts(8, 3)}),
    "granitemoe-odd": TinyModel(
        "granitemoe",
        "bpe",
        more={
            **_ODD,
            **_GRANITE,
            **_experts(5, 2, expert_shared_feed_forward_length=36),
        },
        has=_UNTIED,
    ),
    "lfm2": TinyModel("lfm2", "bpe", more=_LFM2),
    "lfm2-odd": TinyModel(
        "lfm2",
        "bpe",
        more={
            **_ODD,
            **_LFM2,
            "attention.head_count_kv": [0, 3, 0, 3, 0],
            "shortconv.l_cache": 4,
        },
        has=_UNTIED,
    ),
    "mamba2": TinyModel("mamba2", "bpe", more=_MAMBA2),
    "mamba2-odd": TinyModel(
        "mamba2",
        "bpe",
        more={
            **_MAMBA2,
            "embedding_length": 60,
            "ssm.conv_kernel": 3,
            "ssm.inner_size": 120,
            "ssm.state_size": 12,
            "ssm.time_step_rank": 6,
            "ssm.group_count": 2,
        },
        has=_UNTIED,
    ),
    "olmo2": TinyModel("olmo2", "bpe", has=_UNTIED),
    "olmo2-local": TinyModel(
        "olmo2",
        "bpe",
        more={**_ODD, "block_count": 5, "attention.sliding_window": 8, **_YARN},
        has=_UNTIED,
    ),
    "olmoe": TinyModel(
        "olmoe",
        "bpe",
        more={"attention.head_count_kv": 4, **_experts(8, 2)},
        has=_UNTIED,
    ),
    "olmoe-odd": TinyModel(
        "olmoe",
        "bpe",
        more={**_ODD, "attention.head_count_kv": 6, **_experts(6, 4)},
        has=_UNTIED,
    ),
    "phi3": TinyModel("phi3"),
    "phi3-long": TinyModel("phi3", more=_LONG, has=(*_UNTIED, "rope_factors_*")),
    "phi3-short": TinyModel(
        "phi3",
        more={**_ODD, **_LONG, "rope.scaling.original_context_length": 4096},
        has=("rope_factors_*",),
    ),
    "qwen2": TinyModel("qwen2", "bpe", has=_BIASED),
    "qwen2moe": TinyModel(
        "qwen2moe",
        "bpe",
        more=_experts(8, 3, expert_feed_forward_length=32, expert_shared_feed_forward_length=48),
        has=(*_BIASED, *_UNTIED),
    ),
    "qwen2moe-odd": TinyModel(
        "qwen2moe",
        "bpe",
        more={**_ODD, **_experts(6, 2, expert_shared_feed_forward_length=20)},
        has=(*_BIASED, *_UNTIED),
    ),
    "qwen3": TinyModel("qwen3", "bpe", more=_wide(32), has=_UNTIED),
    "qwen3moe": TinyModel(
        "qwen3moe",
        "bpe",
        more={**_wide(32), **_experts(64, 8, expert_feed_forward_length=32)},
    ),
    "qwen3moe-odd": TinyModel(
        "qwen3moe",
        "bpe",
        more={**_ODD, **_wide(20), **_experts(6, 2, expert_feed_forward_length=28)},
        has=_UNTIED,
    ),
    "qwen3next": TinyModel("qwen3next", "bpe", more=_QWEN3NEXT, has=_UNTIED),
    "qwen3next-odd": TinyModel(
        "qwen3next",
        "bpe",
        more={
            **_wide(20),
            **_QWEN3NEXT,
            "block_count": 3,
            "embedding_length": 60,
            "full_attention_interval": 3,
            "ssm.conv_kernel": 3,
            "ssm.inner_size": 72,
            "ssm.state_size": 12,
            "ssm.time_step_rank": 6,
            "ssm.group_count": 3,
            **_experts(6, 3, expert_feed_forward_length=28, expert_shared_feed_forward_length=20),
        },
    ),
    "smollm3": TinyModel("smollm3", "bpe", more={"block_count": 5}),
    "smollm3-odd": TinyModel("smollm3", "bpe", more={**_ODD, "block_count": 4}, has=_UNTIED),
    "starcoder2": TinyModel("starcoder2", "bpe", more=_LAYER_NORM, has=_ALL_BIASED),
    "starcoder2-odd": TinyModel(
        "starcoder2",
        "bpe",
        more={**_ODD, **_LAYER_NORM},
        has=(*_ALL_BIASED, *_UNTIED),
    ),
}


_ENCODER = {**_LAYER_NORM, "attention.causal": False}
_NORM_BIASED = ("*.bias", "token_types.weight")
_MODERN_BERT = {
    **_ENCODER,
    "block_count": 5,
    "attention.sliding_window": 8,
    "rope.scaling.type": "none",
}
MEAN, CLS, LAST, RANK = 1, 2, 3, 4

EMBEDDING_MODELS = {
    "bert": TinyModel(
        "bert",
        "wpm",
        more={**_ENCODER, "attention.head_count_kv": 4, "pooling_type": MEAN},
        has=_NORM_BIASED,
    ),
    "bert-odd": TinyModel(
        "bert",
        "wpm",
        more={**_ODD, **_ENCODER, "attention.head_count_kv": 6, "pooling_type": CLS},
        has=_NORM_BIASED,
    ),
    "bert-rank": TinyModel(
        "bert",
        "wpm",
        more={**_ENCODER, "attention.head_count_kv": 4, "pooling_type": RANK},
        has=(*_NORM_BIASED, "cls.weight"),
    ),
    "nomic-bert": TinyModel(
        "nomic-bert",
        "wpm",
        more={**_ENCODER, "attention.head_count_kv": 4, "pooling_type": MEAN},
        has=("*norm.bias", "token_types.weight"),
    ),
    "gemma-embedding": TinyModel(
        "gemma-embedding",
        more={
            **_wide(32),
            "block_count": 7,
            "attention.sliding_window": 8,
            "pooling_type": MEAN,
            "dense_2_feat_in": 64,
            "dense_2_feat_out": 96,
            "dense_3_feat_in": 96,
            "dense_3_feat_out": 64,
        },
        has=("dense_?.weight",),
    ),
    "gemma-embedding-odd": TinyModel(
        "gemma-embedding",
        more={
            **_ODD,
            **_wide(20),
            "block_count": 6,
            "attention.sliding_window": 6,
            "pooling_type": MEAN,
        },
    ),
    "modern-bert": TinyModel(
        "modern-bert",
        "bpe",
        more={**_MODERN_BERT, "attention.head_count_kv": 4, "pooling_type": CLS},
        has=("blk.[1-9].attn_norm.weight",),
    ),
    "modern-bert-odd": TinyModel(
        "modern-bert",
        "bpe",
        more={
            **_ODD,
            **_MODERN_BERT,
            "attention.head_count_kv": 6,
            "hidden_activation": "silu",
            "rope.freq_base_swa": 500.0,
            "pooling_type": MEAN,
        },
        has=("blk.[1-9].attn_norm.weight",),
    ),
    "qwen3-last": TinyModel("qwen3", "bpe", more={**_wide(32), "pooling_type": LAST}),
    "qwen3-rank": TinyModel(
        "qwen3",
        "bpe",
        more={
            **_wide(32),
            "pooling_type": RANK,
            "classifier.output_labels": ["yes", "no"],
        },
    ),
}
"""Models that embed texts."""


FIRST = (
    *("llama", "llama-bpe", "llama-q8_0", "llama-q4_0", "llama-f16"),
    *("qwen2", "qwen3", "gemma3"),
)
"""Few models, of all kinds of weights."""
OTHERS = tuple(name for name in TINY_MODELS if name not in FIRST)


def prompt(name: str) -> list[int]:
    """POSITIONS token ids, three times the window; the same at every call."""
    rng = np.random.default_rng(len(name))
    return [1, *rng.integers(3, BYTES, POSITIONS - 1).tolist()]


def texts(name: str) -> list[list[int]]:
    """Token ids of three texts of unlike length; the same at every call."""
    rng = np.random.default_rng(len(name))
    return [[2, *rng.integers(4, BYTES, count).tolist(), 3] for count in (5, 21, 12)]


def write(name: str, path: Path) -> None:
    """Write the model called `name`, of TINY_MODELS or EMBEDDING_MODELS, to `path`."""
    model = EMBEDDING_MODELS.get(name) or TINY_MODELS[name]
    words = tokenizer(model.tokenizer)
    sizes = {**model.sizes, "vocab_size": len(words["tokenizer.ggml.tokens"])}

    def kind(tensor: Expected) -> GGMLQuantizationType:
        # Routers stay exact: a rounded score would choose another expert.
        is_packed = fnmatch(tensor.name, model.packed) and "gate_inp" not in tensor.name
        return model.weights if is_packed else GGMLQuantizationType.F32

    write_random(
        path,
        architecture(model.architecture),
        {**{f"{model.architecture}.{key}": value for key, value in sizes.items()}, **words},
        has=lambda tensor: any(fnmatch(tensor, pattern) for pattern in model.has),
        types=kind,
    )


def tokenizer(kind: str) -> dict[str, Any]:
    """A vocabulary of single bytes and a few words, as metadata."""
    prefix = "tokenizer.ggml."
    if kind == "spm":
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(BYTES))]
        words = ["\u2581", "a", "b", "\u2581a", "ab", "\u2581ab"]
        types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
        types += [TokenType.BYTE] * BYTES + [TokenType.NORMAL] * len(words)
        return {
            prefix + "model": "llama",
            prefix + "tokens": [*tokens, *words],
            prefix + "scores": [0.0] * len(tokens) + [-float(i) for i in range(len(words))],
            prefix + "token_type": types,
            prefix + "bos_token_id": 1,
            prefix + "eos_token_id": 2,
        }
    if kind == "wpm":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        letters = [chr(code) for code in range(97, 123)]
        tokens = [*special, *(f"\u2581{letter}" for letter in letters), *letters]
        tokens += [f"\u2581{a}{b}" for a in letters for b in letters[:8]]
        return {
            prefix + "model": "bert",
            prefix + "tokens": tokens,
            prefix + "token_type": [TokenType.CONTROL] * 4 + [TokenType.NORMAL] * (len(tokens) - 4),
            prefix + "token_type_count": 2,
            prefix + "unknown_token_id": 1,
            prefix + "bos_token_id": 2,
            prefix + "seperator_token_id": 3,
            prefix + "padding_token_id": 0,
        }
    tokens = [*map(_letter, range(BYTES)), "ab", "abc", "<|endoftext|>"]
    return {
        prefix + "model": "gpt2",
        prefix + "pre": "qwen2",
        prefix + "tokens": tokens,
        prefix + "token_type": [TokenType.NORMAL] * (len(tokens) - 1) + [TokenType.CONTROL],
        prefix + "merges": ["a b", "ab c"],
        prefix + "bos_token_id": len(tokens) - 1,
        prefix + "eos_token_id": len(tokens) - 1,
    }


def _letter(byte: int) -> str:
    """The printable stand-in of a byte in byte-level vocabularies."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in printable:
        return chr(byte)
    return chr(256 + [b for b in range(BYTES) if b not in printable].index(byte))
