"""Tiny random language models as GGUF files, the same ones at every call: for tests."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants

BYTES = 256


@dataclass(frozen=True)
class TinyModel:
    """Sizes and habits of one model; `extra` writes the metadata of its architecture."""

    architecture: str
    tokenizer: str = "spm"
    layers: int = 3
    embedding: int = 64
    feed_forward: int = 96
    heads: int = 4
    kv_heads: int = 2
    key_length: int = 16
    tied: bool = True
    biases: bool = False
    head_norms: bool = False
    post_norms: bool = False
    rope_factors: bool = False
    weights: GGMLQuantizationType = GGMLQuantizationType.F32
    extra: dict[str, int | float] = field(default_factory=dict)


TINY_MODELS = {
    "llama": TinyModel("llama", tied=False),
    "llama-bpe": TinyModel("llama", "bpe", rope_factors=True),
    "llama-q8_0": TinyModel("llama", weights=GGMLQuantizationType.Q8_0),
    "llama-q4_0": TinyModel("llama", "bpe", weights=GGMLQuantizationType.Q4_0, tied=False),
    "llama-f16": TinyModel("llama", weights=GGMLQuantizationType.F16),
    "qwen2": TinyModel("qwen2", "bpe", biases=True),
    "qwen3": TinyModel("qwen3", "bpe", key_length=32, head_norms=True, tied=False),
    "gemma3": TinyModel(
        "gemma3",
        layers=8,
        kv_heads=1,
        key_length=32,
        head_norms=True,
        post_norms=True,
        extra={"attention.sliding_window": 8},
    ),
}


def prompt(name: str) -> list[int]:
    """24 token ids, three times the window; the same at every call."""
    rng = np.random.default_rng(len(name))
    return [1, *rng.integers(3, BYTES, 23).tolist()]


def write(name: str, path: Path) -> None:
    """Write the model called `name`, a key of TINY_MODELS, to `path`."""
    model = TINY_MODELS[name]
    writer = GGUFWriter(path, model.architecture)
    rng = np.random.default_rng(7)
    tokens = _write_tokenizer(writer, model.tokenizer)
    _write_sizes(writer, model, tokens)

    def add(tensor: str, *shape: int, around: float = 0.0, stored: bool = False) -> None:
        scale = 0.1 if around else 1.5 / np.sqrt(shape[-1])
        data = (around + scale * rng.standard_normal(shape)).astype(np.float32)
        _add(writer, tensor, data, model.weights if stored else GGMLQuantizationType.F32)

    _add_tensors(add, model, tokens)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_sizes(writer: GGUFWriter, model: TinyModel, tokens: int) -> None:
    writer.add_context_length(256)
    writer.add_embedding_length(model.embedding)
    writer.add_block_count(model.layers)
    writer.add_feed_forward_length(model.feed_forward)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_key_length(model.key_length)
    writer.add_value_length(model.key_length)
    writer.add_rope_dimension_count(model.key_length)
    writer.add_rope_freq_base(50000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(tokens)
    for key, value in model.extra.items():
        writer.add_uint32(f"{model.architecture}.{key}", int(value))


def _add_tensors(add: Callable[..., None], model: TinyModel, tokens: int) -> None:
    wide, keys = model.heads * model.key_length, model.kv_heads * model.key_length
    add("token_embd.weight", tokens, model.embedding, stored=True)
    add("output_norm.weight", model.embedding, around=1.0)
    if not model.tied:
        add("output.weight", tokens, model.embedding, stored=True)
    if model.rope_factors:
        add("rope_freqs.weight", model.key_length // 2, around=2.0)
    for i in range(model.layers):
        block = f"blk.{i}."
        add(block + "attn_norm.weight", model.embedding, around=1.0)
        add(block + "ffn_norm.weight", model.embedding, around=1.0)
        for name, rows in (("q", wide), ("k", keys), ("v", keys)):
            add(f"{block}attn_{name}.weight", rows, model.embedding, stored=True)
            if model.biases:
                add(f"{block}attn_{name}.bias", rows)
        add(block + "attn_output.weight", model.embedding, wide, stored=True)
        for name in ("gate", "up"):
            add(f"{block}ffn_{name}.weight", model.feed_forward, model.embedding, stored=True)
        add(block + "ffn_down.weight", model.embedding, model.feed_forward, stored=True)
        if model.head_norms:
            add(block + "attn_q_norm.weight", model.key_length, around=1.0)
            add(block + "attn_k_norm.weight", model.key_length, around=1.0)
        if model.post_norms:
            add(block + "post_attention_norm.weight", model.embedding, around=1.0)
            add(block + "post_ffw_norm.weight", model.embedding, around=1.0)


def _add(writer: GGUFWriter, name: str, data: np.ndarray, kind: GGMLQuantizationType) -> None:
    if kind is GGMLQuantizationType.F32:
        writer.add_tensor(name, data)
        return
    writer.add_tensor(name, quants.quantize(data, kind), raw_dtype=kind)


def _write_tokenizer(writer: GGUFWriter, kind: str) -> int:
    """Write a vocabulary of single bytes and a few words; return its size."""
    if kind == "spm":
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(BYTES))]
        words = ["\u2581", "a", "b", "\u2581a", "ab", "\u2581ab"]
        types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
        types += [TokenType.BYTE] * BYTES + [TokenType.NORMAL] * len(words)
        writer.add_tokenizer_model("llama")
        writer.add_token_list([*tokens, *words])
        writer.add_token_scores([0.0] * len(tokens) + [-float(i) for i in range(len(words))])
        writer.add_token_types(types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        return len(tokens) + len(words)
    letters = [_letter(i) for i in range(BYTES)]
    tokens = [*letters, "ab", "abc", "<|endoftext|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.NORMAL] * (len(tokens) - 1) + [TokenType.CONTROL])
    writer.add_token_merges(["a b", "ab c"])
    writer.add_bos_token_id(len(tokens) - 1)
    writer.add_eos_token_id(len(tokens) - 1)
    return len(tokens)


def _letter(byte: int) -> str:
    """The printable stand-in of a byte in byte-level vocabularies."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in printable:
        return chr(byte)
    return chr(256 + [b for b in range(BYTES) if b not in printable].index(byte))
