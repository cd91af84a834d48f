"""Small GGUF files with random weights, whole or with one thing wrong."""

import functools
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tensorplug_llm.arch import Expected, architecture
from tensorplug_llm.testing.random_models import F32, read_hparams, write_file

PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTES = [chr(byte) for byte in PRINTABLE] + [chr(256 + n) for n in range(len(OTHERS))]
END = len(BYTES) + 1
"""Id of the token that ends a text."""
VOCABULARY = 272
"""Rows of the embedding table; a few more than there are tokens, as in some real models."""

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"

SIZES: Mapping[str, Any] = {
    "context_length": 1024,
    "embedding_length": 32,
    "block_count": 2,
    "feed_forward_length": 48,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 8,
    "attention.value_length": 8,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
    "rope.freq_base": 10000.0,
}
_WINDOW = {"attention.sliding_window": 20, "attention.sliding_window_pattern": 2}
_EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 24}
MORE: Mapping[str, Mapping[str, Any]] = {
    "gemma2": _WINDOW,
    "gemma3": _WINDOW,
    "gemma-embedding": _WINDOW,
    "gpt-oss": {**_WINDOW, **_EXPERTS},
    "granite": {"logit_scale": 2.0},
    "granitemoe": {"logit_scale": 2.0, **_EXPERTS},
    "lfm2": {"attention.head_count_kv": [0, 2], "shortconv.l_cache": 3},
    "mamba2": {
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 64,
        "ssm.state_size": 8,
        "ssm.time_step_rank": 4,
        "ssm.group_count": 2,
    },
    "modern-bert": _WINDOW,
    "olmoe": _EXPERTS,
    "qwen2moe": {**_EXPERTS, "expert_shared_feed_forward_length": 16},
    "qwen3moe": _EXPERTS,
    "qwen3next": {
        **_EXPERTS,
        "expert_shared_feed_forward_length": 16,
        "full_attention_interval": 2,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 32,
        "ssm.state_size": 8,
        "ssm.time_step_rank": 4,
        "ssm.group_count": 2,
    },
}
TOKENIZER: Mapping[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [*BYTES, "he", "<end>"],
    "tokenizer.ggml.token_type": [1] * (len(BYTES) + 1) + [3],
    "tokenizer.ggml.merges": ["h e"],
    "tokenizer.ggml.eos_token_id": END,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.ggml.token_type_count": 2,
    "tokenizer.chat_template": CHAT,
}


def write_model(
    path: Path,
    architecture: str = "llama",
    *,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray | None] | None = None,
    seed: int = 0,
) -> Path:
    """Write a model; `metadata` and `tensors` replace entries, or remove those that are None."""
    arrays = {**random_tensors(architecture, seed), **(tensors or {})}
    entries = usual_metadata(architecture) | dict(metadata or {})
    write_file(
        path,
        architecture,
        {key: value for key, value in entries.items() if value is not None},
        ((name, array, F32) for name, array in arrays.items() if array is not None),
    )
    return path


def usual_metadata(architecture: str) -> dict[str, Any]:
    """What a whole file says."""
    sizes = {**SIZES, **MORE.get(architecture, {})}
    return {f"{architecture}.{key}": value for key, value in sizes.items()} | dict(TOKENIZER)


def random_tensors(architecture: str, seed: int) -> dict[str, np.ndarray]:
    """Weights of a model of SIZES: norms near one, matrices that keep the size of what passes."""
    random = np.random.default_rng(seed)
    arrays = {}
    for tensor in wanted_tensors(architecture):
        shape = tensor.ne[::-1]
        if len(shape) == 1:
            arrays[tensor.name] = (1 + 0.1 * random.standard_normal(shape)).astype(np.float32)
        else:
            scaled = random.standard_normal(shape) / np.sqrt(shape[-1])
            # States decay at rates that are below zero.
            drawn = -np.abs(scaled) if tensor.name.endswith("ssm_a") else scaled
            arrays[tensor.name] = drawn.astype(np.float32)
    return arrays


@functools.cache
def wanted_tensors(name: str) -> Iterable[Expected]:
    """The tensors that a file must have."""
    wanted = architecture(name)
    with tempfile.TemporaryDirectory() as folder:
        hparams = read_hparams(Path(folder) / "draft", wanted, usual_metadata(name), VOCABULARY)
    return [tensor for tensor in wanted.tensors(hparams) if not tensor.optional]
