"""Small GGUF files with random weights, whole or with one thing wrong."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tensorplug_llm.arch import ARCHITECTURES
from tensorplug_llm.arch.common import Expected
from tensorplug_llm.hparams import HParams, Rope

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
    "rope.freq_base": 10000.0,
}
MORE: Mapping[str, Mapping[str, Any]] = {
    "gemma3": {"attention.sliding_window": 20, "attention.sliding_window_pattern": 2}
}
TOKENIZER: Mapping[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [*BYTES, "he", "<end>"],
    "tokenizer.ggml.token_type": [1] * (len(BYTES) + 1) + [3],
    "tokenizer.ggml.merges": ["h e"],
    "tokenizer.ggml.eos_token_id": END,
    "tokenizer.ggml.add_bos_token": False,
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
    sizes = {**SIZES, **MORE.get(architecture, {})}
    entries = {f"{architecture}.{key}": value for key, value in sizes.items()} | dict(TOKENIZER)
    entries |= metadata or {}
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in entries.items():
        if value is not None:
            _add(writer, key, value)
    arrays = {**random_tensors(architecture, seed), **(tensors or {})}
    for name, array in arrays.items():
        if array is not None:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
            arrays[tensor.name] = scaled.astype(np.float32)
    return arrays


def wanted_tensors(architecture: str) -> Iterable[Expected]:
    """The tensors that a file must have."""
    rope = Rope(SIZES["attention.key_length"], "normal", 10000.0)
    hparams = HParams(
        architecture=architecture,
        context=SIZES["context_length"],
        vocabulary=VOCABULARY,
        embedding=SIZES["embedding_length"],
        layers=SIZES["block_count"],
        feed_forward=SIZES["feed_forward_length"],
        heads=SIZES["attention.head_count"],
        kv_heads=SIZES["attention.head_count_kv"],
        key_length=SIZES["attention.key_length"],
        value_length=SIZES["attention.value_length"],
        norm_eps=1e-5,
        rope=rope,
        local_rope=rope,
        attention_scale=1.0,
    )
    return (t for t in ARCHITECTURES[architecture].tensors(hparams) if not t.optional)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list | tuple):
        writer.add_array(key, value)
    elif isinstance(value, str | bytes):
        writer.add_key_value(key, value, gguf.GGUFValueType.STRING)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_int64(key, value) if value < 0 else writer.add_uint64(key, value)
    else:
        writer.add_float32(key, value)
