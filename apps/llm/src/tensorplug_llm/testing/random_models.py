"""GGUF files of any architecture with random weights, the same ones at every call: for tests."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, quants

from tensorplug.device import Array
from tensorplug.gguf import open_gguf
from tensorplug_llm.arch import Architecture, Expected
from tensorplug_llm.hparams import HParams

F32 = GGMLQuantizationType.F32
Types = Callable[[Expected], GGMLQuantizationType]


def write_file(
    path: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: Iterable[tuple[str, Array, GGMLQuantizationType]],
) -> None:
    """Write a file; numbers become 64-bit integers and 32-bit floats."""
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        _add_metadata(writer, key, value)
    for name, data, kind in tensors:
        is_packed = kind is not F32
        writer.add_tensor(
            name,
            quants.quantize(data, kind) if is_packed else data,
            raw_dtype=kind if is_packed else None,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_hparams(
    path: Path, architecture: Architecture, metadata: Mapping[str, Any], rows: int
) -> HParams:
    """What the architecture reads from `metadata` where the embedding table has `rows` rows.

    At `path` a file is written and deleted.
    """
    layers = metadata[f"{architecture.name}.block_count"]
    names = ["token_embd.weight", *(f"blk.{i}" for i in range(layers))]
    shapes = [(rows, 1), *[(1, 1)] * layers]
    tensors = zip(names, (np.zeros(shape, np.float32) for shape in shapes), strict=True)
    write_file(path, architecture.name, metadata, ((name, data, F32) for name, data in tensors))
    with open_gguf(path) as file:
        hparams = architecture.read(file)
    path.unlink()
    return hparams


def write_random(
    path: Path,
    architecture: Architecture,
    metadata: Mapping[str, Any],
    *,
    has: Callable[[str], bool] = lambda _name: False,
    types: Types = lambda _tensor: F32,
    seed: int = 7,
) -> None:
    """Write a model with `metadata`, all tensors it needs, and the optional ones that it `has`.

    Weights of norms and factors are around 1, all else around 0. `types` gives the type of each
    matrix.
    """
    rng = np.random.default_rng(seed)
    tokens = len(metadata["tokenizer.ggml.tokens"])
    hparams = read_hparams(path, architecture, metadata, tokens)

    def values(tensor: Expected) -> Array:
        shape = tensor.ne[::-1]
        is_factor = tensor.name.endswith(("norm.weight", "rope_freqs.weight")) or (
            tensor.name.startswith("rope_factors")
        )
        center, scale = (1.0, 0.1) if is_factor else (0.0, 1.5 / np.sqrt(shape[-1]))
        drawn = (center + scale * rng.standard_normal(shape)).astype(np.float32)
        # States decay at rates that are below zero.
        return -np.abs(drawn) if tensor.name.endswith("ssm_a") else drawn

    write_file(
        path,
        architecture.name,
        metadata,
        (
            (tensor.name, values(tensor), types(tensor) if tensor.is_matrix else F32)
            for tensor in architecture.tensors(hparams)
            if not tensor.optional or has(tensor.name)
        ),
    )


def _add_metadata(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list | tuple):
        writer.add_array(key, value)
    elif isinstance(value, str | bytes):
        writer.add_key_value(key, value, GGUFValueType.STRING)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        # llama.cpp reads most sizes as u32.
        if value < 0:
            writer.add_int64(key, value)
        elif value < 1 << 32:
            writer.add_uint32(key, value)
        else:
            writer.add_uint64(key, value)
    else:
        writer.add_float32(key, value)
