"""Tiny random LoRA adapters of the folder `llama-f16`, the same ones at every call: for tests."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

Array = np.ndarray[Any, Any]
RANK, ALPHA = 4, 6.0
SCALE = 0.75
"""What the recorded logits were made with, besides the adapter's own."""

NAMES = {
    "self_attn.q_proj": ("attn_q", 64, 64),
    "self_attn.k_proj": ("attn_k", 64, 32),
    "self_attn.o_proj": ("attn_output", 64, 64),
    "mlp.up_proj": ("ffn_up", 64, 96),
    "mlp.down_proj": ("ffn_down", 96, 64),
}
"""Matrices that are adapted: name in GGUF, columns and rows."""


def matrices(seed: int = 5) -> dict[str, tuple[Array, Array]]:
    """A [rank, columns] and B [rows, rank] by the name in Hugging Face of the matrix."""
    rng = np.random.default_rng(seed)
    found = {}
    for i in range(3):
        for name, (_, columns, rows) in NAMES.items():
            down = rng.standard_normal((RANK, columns)).astype(np.float32) / 8
            up = rng.standard_normal((rows, RANK)).astype(np.float32) / 4
            found[f"model.layers.{i}.{name}"] = (down, up)
    return found


def write_folder(path: Path, seed: int = 5, **config: Any) -> Path:
    """Write an adapter as PEFT does."""
    from .hf_folders import safetensors

    path.mkdir()
    entries = {}
    for name, pair in matrices(seed).items():
        for letter, values in zip("AB", pair, strict=True):
            key = f"base_model.model.{name}.lora_{letter}.weight"
            entries[key] = ("F32", values.shape, values.tobytes())
    (path / "adapter_model.safetensors").write_bytes(safetensors(entries))
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "use_rslora": False}
    (path / "adapter_config.json").write_text(json.dumps(settings | config))
    return path


def write_file(path: Path, seed: int = 5, architecture: str = "llama") -> Path:
    """Write an adapter as llama.cpp's converter does: pairs of rows of q and k turn."""
    writer = GGUFWriter(path, architecture)
    writer.add_key_value("general.type", "adapter", GGUFValueType.STRING)
    writer.add_key_value("adapter.type", "lora", GGUFValueType.STRING)
    writer.add_key_value("adapter.lora.alpha", ALPHA, GGUFValueType.FLOAT32)
    for name, (down, up) in matrices(seed).items():
        _, _, layer, rest = name.split(".", 3)
        ours, _, rows = NAMES[rest]
        if ours in ("attn_q", "attn_k"):
            heads = rows // 16
            up = up.reshape(heads, 2, 8, RANK).transpose(0, 2, 1, 3).reshape(rows, RANK)
        for letter, values in (("a", down), ("b", up)):
            data = np.ascontiguousarray(values)
            tensor = f"blk.{layer}.{ours}.weight.lora_{letter}"
            writer.add_tensor(tensor, data, raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
