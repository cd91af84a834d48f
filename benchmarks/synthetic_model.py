"""A llama model of a wanted size with random weights, as a GGUF file: `FILE --bytes 8e9`.

The same values at every call. Weights are drawn once, some MiB for each length of row, and repeated
from another place on for each tensor, so that writing takes as long as the disk does and no more
memory. Their size keeps logits finite; what the model says means nothing.
"""

import argparse
import shutil
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

import tensorplug as tp
from tensorplug.errors import OptionError

TYPES = {"q8_0": tp.Q8_0, "f16": tp.F16, "f32": tp.F32}
DRAWN = 1 << 24
"""Bytes of weights that are drawn."""
FEWEST = 4
"""Layers that a width must leave room for, except the smallest."""
ALIGNMENT, VERSION = 32, 3
ROOM = 1 << 26
"""Bytes of the disk that are left free."""
BYTES = 256
SPREAD = 73.3
"""The standard deviation of whole numbers from -127 to 127."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Elements; those of a model but for its number of layers."""

    embedding: int
    feed_forward: int
    heads: int
    kv_heads: int
    key_length: int
    vocabulary: int


WIDTHS = (
    Sizes(4096, 14336, 32, 8, 128, 32000),
    Sizes(2048, 5632, 16, 4, 128, 32000),
    Sizes(1024, 2816, 8, 2, 128, 8192),
    Sizes(256, 768, 4, 2, 64, 1024),
    Sizes(64, 128, 4, 2, 16, 320),
)
"""Wide ones first."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of the file; `ne` is in GGUF's order. Vectors are of ones."""

    name: str
    dtype: tp.DType
    ne: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return self.dtype.row_size(self.ne[0]) * prod(self.ne[1:])


def outer(sizes: Sizes, dtype: tp.DType) -> Iterator[Entry]:
    """What there is once."""
    table = (sizes.embedding, sizes.vocabulary)
    yield Entry("token_embd.weight", dtype, table)
    yield Entry("output_norm.weight", tp.F32, table[:1])
    yield Entry("output.weight", dtype, table)


def layer(sizes: Sizes, dtype: tp.DType, number: int) -> Iterator[Entry]:
    """The tensors of one layer."""
    width, wide = sizes.embedding, sizes.heads * sizes.key_length
    keys = sizes.kv_heads * sizes.key_length
    shapes: Mapping[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "attn_q": (width, wide),
        "attn_k": (width, keys),
        "attn_v": (width, keys),
        "attn_output": (wide, width),
        "ffn_norm": (width,),
        "ffn_gate": (width, sizes.feed_forward),
        "ffn_up": (width, sizes.feed_forward),
        "ffn_down": (sizes.feed_forward, width),
    }
    for name, ne in shapes.items():
        kind = dtype if len(ne) > 1 else tp.F32
        yield Entry(f"blk.{number}.{name}.weight", kind, ne)


def chosen(wanted: float, dtype: tp.DType) -> tuple[Sizes, int]:
    """The widest sizes with some layers in `wanted` bytes, and how many there are. Raises
    OptionError."""
    for sizes in WIDTHS:
        fixed, each = (
            sum(e.nbytes for e in entries)
            for entries in (outer(sizes, dtype), layer(sizes, dtype, 0))
        )
        layers = int((wanted - fixed) // each)
        if layers >= (1 if sizes is WIDTHS[-1] else FEWEST):
            return sizes, layers
    raise OptionError(
        f"synthetic model: {wanted:.0f} bytes of {dtype.name} hold no layer; give at least "
        f"{fixed + each}"
    )


# --- the head of the file ------------------------------------------------------------------------


def text(value: str) -> bytes:
    """A string of GGUF."""
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def number(kind: int, form: str, value: float) -> bytes:
    """A number with its type."""
    return struct.pack(f"<I{form}", kind, value)


def array(kind: int, data: bytes, count: int) -> bytes:
    """An array with its types."""
    return struct.pack("<IIQ", 9, kind, count) + data


def metadata(sizes: Sizes, layers: int) -> dict[str, bytes]:
    """Keys and their values as the file has them. The vocabulary is of bytes, and fillers."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(BYTES))]
    kinds = [2, 3, 3] + [6] * BYTES + [1] * (sizes.vocabulary - len(words))
    words += [f"word{i}" for i in range(sizes.vocabulary - len(words))]
    scores = -np.arange(len(words), dtype="<f4")
    lengths = {
        "context_length": 4096,
        "embedding_length": sizes.embedding,
        "block_count": layers,
        "feed_forward_length": sizes.feed_forward,
        "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.kv_heads,
        "attention.key_length": sizes.key_length,
        "attention.value_length": sizes.key_length,
        "rope.dimension_count": sizes.key_length,
        "vocab_size": sizes.vocabulary,
    }
    return {
        "general.architecture": struct.pack("<I", 8) + text("llama"),
        "general.alignment": number(4, "I", ALIGNMENT),
        **{f"llama.{key}": number(4, "I", value) for key, value in lengths.items()},
        "llama.rope.freq_base": number(6, "f", 10000.0),
        "llama.attention.layer_norm_rms_epsilon": number(6, "f", 1e-5),
        "tokenizer.ggml.model": struct.pack("<I", 8) + text("llama"),
        "tokenizer.ggml.tokens": array(8, b"".join(map(text, words)), len(words)),
        "tokenizer.ggml.scores": array(6, scores.tobytes(), len(words)),
        "tokenizer.ggml.token_type": array(5, np.array(kinds, "<i4").tobytes(), len(words)),
        "tokenizer.ggml.bos_token_id": number(4, "I", 1),
        "tokenizer.ggml.eos_token_id": number(4, "I", 2),
        "tokenizer.ggml.unknown_token_id": number(4, "I", 0),
    }


def aligned(size: int) -> int:
    """The next place where data may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def head(entries: list[Entry], known: Mapping[str, bytes]) -> bytes:
    """All that comes before the data, padded."""
    found = b"GGUF" + struct.pack("<IQQ", VERSION, len(entries), len(known))
    found += b"".join(text(key) + value for key, value in known.items())
    place = 0
    for entry in entries:
        rank = len(entry.ne)
        found += text(entry.name) + struct.pack(f"<I{rank}Q", rank, *entry.ne)
        found += struct.pack("<IQ", entry.dtype.id, place)
        place += aligned(entry.nbytes)
    return found.ljust(aligned(len(found)), b"\0")


# --- the weights ---------------------------------------------------------------------------------


class Weights:
    """Random weights, drawn once for each type and length of row."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._drawn: dict[tuple[tp.DType, int], memoryview] = {}

    def write(self, file: BinaryIO, entry: Entry) -> None:
        """Append the data of a tensor, padded."""
        if len(entry.ne) == 1:
            file.write(np.ones(entry.ne, "<f4").tobytes())
        else:
            self._repeat(file, entry)
        file.write(bytes(aligned(entry.nbytes) - entry.nbytes))

    def _repeat(self, file: BinaryIO, entry: Entry) -> None:
        key = entry.dtype, entry.ne[0]
        if key not in self._drawn:
            drawn = self._draw(*key)
            self._drawn[key] = memoryview(drawn.reshape(-1).view(np.uint8))
        source, left = self._drawn[key], entry.nbytes
        unit = entry.dtype.size
        start = int(self._random.integers(len(source) // unit)) * unit
        while left:
            part = source[start : start + left]
            file.write(part)
            left, start = left - len(part), 0

    def _draw(self, dtype: tp.DType, length: int) -> Any:
        """Blocks or elements around 0, of a size that keeps products of a row near 1."""
        count, size = max(DRAWN // dtype.size, 1), 1 / np.sqrt(length)
        if dtype is tp.Q8_0:
            blocks = np.empty(count, [("scale", "<f2"), ("values", "i1", dtype.block)])
            blocks["scale"] = self._random.uniform(0.5, 1.5, count) * size / SPREAD
            blocks["values"] = self._random.integers(-127, 128, (count, dtype.block), np.int8)
            return blocks
        return (self._random.standard_normal(count, np.float32) * size).astype(dtype.numpy)


def write_model(path: Path, size: float, kind: str, seed: int = 7) -> Path:
    """Write a model of at most `size` bytes of weights to `path`. Raises OptionError."""
    dtype = TYPES[kind]
    sizes, layers = chosen(size, dtype)
    entries = [*outer(sizes, dtype)]
    entries += [entry for i in range(layers) for entry in layer(sizes, dtype, i)]
    start = head(entries, metadata(sizes, layers))
    whole = len(start) + sum(aligned(entry.nbytes) for entry in entries)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size == whole:
        return path
    free = shutil.disk_usage(path.parent).free
    if whole + ROOM > free:
        raise OptionError(
            f"synthetic model: {path.parent} has {free} bytes free, and {whole + ROOM} are needed; "
            "name another folder, or a smaller size"
        )
    # It gets its name when it is whole.
    unfinished = path.with_suffix(".part")
    weights = Weights(seed)
    with unfinished.open("wb") as file:
        file.write(start)
        for entry in entries:
            weights.write(file, entry)
    unfinished.replace(path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--bytes", type=float, default=8e9, help="of weights, at most")
    parser.add_argument("--type", choices=TYPES, default="q8_0")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    write_model(arguments.file, arguments.bytes, arguments.type, arguments.seed)
    print(f"{arguments.file}: {arguments.file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
