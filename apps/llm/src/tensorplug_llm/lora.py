"""LoRA adapters (Hu et al. 2021, arXiv:2106.09685), merged into the weights when these are read.

An adapted matrix is W + scale * B @ A: in f32 where W is, else in f16, which holds it more exactly
than the block type that W may have. It is computed from the file some rows at a time.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from tensorplug.device import Array, FileRange
from tensorplug.dtypes import F16, F32
from tensorplug.errors import FormatError, OptionError
from tensorplug.gguf import FileTensor, ModelFile, TensorFile, open_gguf
from tensorplug.gguf.cursor import quote
from tensorplug.gguf.strings import Bytes
from tensorplug_llm.folders.families import FAMILIES
from tensorplug_llm.folders.jsonfile import Fields, read_object
from tensorplug_llm.folders.made import MadeFile, decode, decoded, neighbours
from tensorplug_llm.folders.safetensors import open_safetensors
from tensorplug_llm.opening import LoRA

PEFT_CONFIG, PEFT_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PEFT_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
UNSUPPORTED = (
    *("use_dora", "fan_in_fan_out", "alpha_pattern", "rank_pattern", "lora_bias"),
    *("alora_invocation_tokens", "layer_replication", "use_qalora", "arrow_config"),
)
"""Settings of PEFT that must be off."""
STARTS = (True, False, None, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` that set the adapter's first values only. Others, such as `olora`
and `pissa`, change the weights of the model, too."""
MERGE = "it is not supported; merge the adapter with PEFT"
MOST_F16 = 65504.0


Scale = Callable[[int], float]
"""The scale of an adapter by its rank."""


@dataclass(frozen=True, slots=True)
class _Delta:
    """What an adapter adds to one matrix: `up` [rows, rank] times `down` [rank, columns]."""

    up: Array
    down: Array
    path: Path

    def rows(self, start: int, stop: int) -> Array:
        found: Array = self.up[start:stop] @ self.down
        return found


class Adapted(MadeFile):
    """A model with adapters. Closing it closes the model's file."""

    def __init__(self, base: ModelFile, adapters: Sequence[LoRA]) -> None:
        """Raises FormatError, where an adapter is damaged or of another model."""
        super().__init__(base.path)
        self._base = base
        self.metadata = base.metadata
        self._deltas: dict[str, list[_Delta]] = {}
        for adapter in adapters:
            for name, delta in _read(adapter, base).items():
                self._check(name, delta)
                self._deltas.setdefault(name, []).append(delta)
        self.tensors = MappingProxyType(
            {name: self._adapted(tensor) for name, tensor in base.tensors.items()}
        )

    def _check(self, name: str, delta: _Delta) -> None:
        tensor = self._base.tensors.get(name)
        problem = ""
        if tensor is None:
            problem = "and the model has no such tensor"
        elif name == "token_embd.weight" or tensor.rank != 2:
            problem = "and only matrices are adapted, not tables of embeddings and experts"
        elif (*delta.down.shape[1:], len(delta.up)) != tensor.ne[:2]:
            wanted = " x ".join(map(str, tensor.ne[:2]))
            problem = f"of {delta.down.shape[1]} x {len(delta.up)}, and the model's is {wanted}"
        if problem:
            raise FormatError(
                f"{delta.path}: adapts the tensor {quote(name)}, {problem}; use the adapter with "
                "the model that it was made for"
            )

    def _adapted(self, tensor: FileTensor) -> FileTensor:
        if tensor.name not in self._deltas:
            return tensor
        dtype = F32 if tensor.dtype is F32 else F16
        nbytes = dtype.size * tensor.ne[0] * tensor.ne[1]
        return FileTensor(tensor.name, dtype, tensor.ne, tensor.rank, 0, nbytes)

    def called(self, name: str) -> str:
        """The name that the model's files give to a tensor."""
        return self._base.called(name)

    def memory_of(self, name: str) -> Bytes | None:
        """The mapped memory of a tensor; None where it is adapted."""
        self.find(name)
        return None if name in self._deltas else self._base.memory_of(name)

    def part_of(self, name: str, start: int, size: int) -> Bytes:
        """`size` bytes from `start`, computed where the tensor is adapted."""
        tensor = self.find(name)
        if name not in self._deltas:
            return self._base.part_of(name, start, size)
        row = tensor.dtype.row_size(tensor.ne[0])
        first, last = start // row, -(-(start + size) // row)
        whole = self._rows(tensor, first, last).view(np.uint8).reshape(-1)
        return whole[start - first * row :][:size]

    def _rows(self, tensor: FileTensor, first: int, last: int) -> Array:
        stored = self._base.find(tensor.name)
        row = stored.dtype.row_size(stored.ne[0])
        raw = self._base.part_of(tensor.name, first * row, (last - first) * row)
        values = decode(stored.dtype, raw.reshape(-1, row), stored.ne[0])
        for delta in self._deltas[tensor.name]:
            values += delta.rows(first, last)
        if not np.abs(values).max(initial=0) <= MOST_F16:
            raise FormatError(
                f"{self.path}: with its adapters the tensor {quote(tensor.name)} holds values that "
                f"are not numbers up to {MOST_F16}, as f16 has them; use a smaller scale"
            )
        return values if tensor.dtype is F32 else values.astype(np.float16)

    def range_of(self, name: str) -> FileRange | None:
        """Where a tensor that is not adapted is in the model's file."""
        self.find(name)
        return None if name in self._deltas else self._base.range_of(name)

    def check_size(self) -> None:
        """Raise FormatError if a file of the model was shortened."""
        self._base.check_size()

    def release(self, name: str | None = None, start: int = 0, size: int = 0) -> None:
        """Free mapped pages, of a tensor that is not adapted or of all files."""
        if name not in self._deltas:
            self._base.release(name, start, size)

    def _close(self) -> None:
        super()._close()
        self._base.close()


def _read(adapter: LoRA, base: ModelFile) -> dict[str, _Delta]:
    """What an adapter adds to each matrix. Raises FormatError."""
    if not math.isfinite(adapter.scale):
        raise OptionError(f"lora: the scale {adapter.scale} of {adapter.path} must be finite")
    found = _of_folder(adapter, base) if adapter.path.is_dir() else _of_file(adapter, base)
    if not found:
        raise FormatError(f"{adapter.path}: holds no adapter; give that of a LoRA")
    return found


def _of_file(adapter: LoRA, base: ModelFile) -> dict[str, _Delta]:
    """Of a GGUF file, as llama.cpp's converter writes it."""
    with open_gguf(adapter.path) as file:
        if file.require("general.type", str) != "adapter" or (
            file.require("adapter.type", str) != "lora"
        ):
            raise FormatError(f"{adapter.path}: is not a LoRA adapter; give one after --lora")
        theirs = file.require("general.architecture", str)
        ours = base.require("general.architecture", str)
        if theirs != ours:
            raise FormatError(
                f"{adapter.path}: is for the architecture {theirs[:40]!r}, and the model is "
                f"{ours!r}; use the adapter with the model that it was made for"
            )
        alpha = file.require("adapter.lora.alpha", float)
        pairs: dict[str, dict[str, Array]] = {}
        for name in file.tensors:
            stem, _, part = name.rpartition(".lora_")
            if part not in ("a", "b"):
                raise FormatError(
                    f"{adapter.path}: tensor {quote(name)} has no place in an adapter; use one "
                    "without other changes"
                )
            pairs.setdefault(stem, {})[part] = _matrix(file, name)
    return {
        name: _delta(adapter, name, pair, lambda rank: alpha / rank if alpha else 1.0)
        for name, pair in pairs.items()
    }


def _of_folder(adapter: LoRA, base: ModelFile) -> dict[str, _Delta]:
    """Of a folder that PEFT wrote."""
    path = adapter.path / PEFT_CONFIG
    config = Fields(read_object(path), str(path))
    if config.text("peft_type", "LORA") != "LORA":
        raise config.error("peft_type", "known is LORA")
    for key in UNSUPPORTED:
        if config.values.get(key):
            raise config.error(key, MERGE)
    if config.values.get("init_lora_weights") not in STARTS:
        raise config.error("init_lora_weights", MERGE)
    alpha = config.number("lora_alpha", 8.0)
    is_stable = config.flag("use_rslora", default=False)
    names = _names(base)
    pairs: dict[str, dict[str, Array]] = {}
    with open_safetensors(adapter.path / PEFT_WEIGHTS) as file:
        for theirs in (*file.tensors, *file.unusable):
            match = PEFT_NAME.fullmatch(theirs)
            name = names.get(match[1]) if match else None
            if match is None or name is None:
                raise FormatError(
                    f"{adapter.path}: tensor {quote(theirs)} adapts nothing that the model has; "
                    "use the adapter with the model that it was made for"
                )
            pairs.setdefault(name, {})[match[2].lower()] = _matrix(file, theirs)
    heads = _turned_heads(base)
    for name, pair in pairs.items():
        count = heads.get(name.split(".")[-2], 0)
        if count and "b" in pair and len(pair["b"]) % (2 * count) == 0:
            pair["b"] = pair["b"][neighbours(len(pair["b"]), count)]
    return {
        name: _delta(
            adapter, name, pair, lambda rank: alpha / (math.sqrt(rank) if is_stable else rank)
        )
        for name, pair in pairs.items()
    }


def _names(base: ModelFile) -> dict[str, str]:
    """Names of the model's matrices in GGUF by those in Hugging Face, without `.weight`."""
    architecture = base.require("general.architecture", str)
    found = {}
    for family in FAMILIES.values():
        if family.architecture != architecture:
            continue
        for name in base.tensors:
            parts = name.split(".")
            if len(parts) == 4 and parts[3] == "weight" and parts[2] in family.layer:
                theirs = family.layer[parts[2]]
                if "#" not in theirs and "{" not in theirs:
                    found[f"model.layers.{parts[1]}.{theirs}"] = name
            elif len(parts) == 2 and parts[1] == "weight" and parts[0] in family.model:
                found[family.model[parts[0]]] = name
    return found


def _turned_heads(base: ModelFile) -> Mapping[str, int]:
    """Heads of queries and keys whose rows are in another order than in Hugging Face."""
    architecture = base.require("general.architecture", str)
    if all(f.turns_halves for f in FAMILIES.values() if f.architecture == architecture):
        return {}
    heads = base.require(f"{architecture}.attention.head_count", int)
    keys = base.metadata.get(f"{architecture}.attention.head_count_kv", heads)
    return {"attn_q": heads, "attn_k": keys if isinstance(keys, int) else heads}


def _matrix(file: TensorFile, name: str) -> Array:
    """A matrix of an adapter in f32. Raises FormatError."""
    entry = file.find(name)
    if entry.rank > 2 or not (entry.dtype.is_float and entry.dtype.block == 1):
        raise FormatError(
            f"{file.path}: tensor {quote(name)} must be a matrix in f32, f16 or bf16; it is "
            f"{entry.dtype.name} with {entry.rank} dimensions"
        )
    return decoded(file, entry)


def _delta(adapter: LoRA, name: str, pair: Mapping[str, Array], scale: Scale) -> _Delta:
    """Both matrices, with all scales in one of them. Raises FormatError."""
    if pair.keys() != {"a", "b"}:
        raise FormatError(f"{adapter.path}: {quote(name)} has one of its two matrices only")
    down, up = pair["a"], pair["b"]
    if up.shape[1] != len(down):
        raise FormatError(
            f"{adapter.path}: the matrices of {quote(name)} are of ranks {up.shape[1]} and "
            f"{len(down)}; fetch it again"
        )
    return _Delta(up * np.float32(adapter.scale * scale(len(down))), down, adapter.path)
