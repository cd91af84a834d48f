"""A llama model with random weights as a GGUF file: `FILE --bytes 8e9`, or `FILE --shape 1g`.

The same values at every call. Weights are drawn once, some MiB for each type and length of row, and
repeated from another place on for each tensor, so that writing takes as long as the disk does and
no more memory. Their size keeps logits finite; what the model says means nothing. The tokenizer
joins small letters in pairs and reads everything else as bytes.
"""

import argparse
import shutil
import string
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

import tensorplug as tp
from tensorplug import blocks
from tensorplug.dtypes import IQ4_XS, Q5_K
from tensorplug.errors import OptionError
from tensorplug_testing.cases.blocks import HALF_SCALES


@dataclass(frozen=True, slots=True)
class Mix:
    """Types of matrices: most of them, the output, and those that some layers give more bits."""

    usual: tp.DType
    output: tp.DType
    more: tp.DType


TYPES = {
    "q4_K_M": Mix(tp.Q4_K, tp.Q6_K, tp.Q6_K),
    "q5_K_M": Mix(Q5_K, tp.Q6_K, tp.Q6_K),
    "iq4_xs": Mix(IQ4_XS, tp.Q6_K, IQ4_XS),
    **{kind.name: Mix(kind, kind, kind) for kind in (tp.Q6_K, tp.Q8_0, tp.F16, tp.F32)},
}
"""By name. The mixes ending in `_M` are llama.cpp's."""
MORE = ("attn_v", "ffn_down")
"""What has more bits in some layers."""
DRAWN = 1 << 24
"""Bytes of weights that are drawn."""
FEWEST = 4
"""Layers that a width must leave room for, except the smallest."""
ALIGNMENT, VERSION = 32, 3
ROOM = 1 << 26
"""Bytes of the disk that are left free."""
BYTES = 256
SPACE = "\u2581"
"""What tokens hold in place of a space."""
SEEN = 1 << 10
"""Blocks whose values tell the size of all."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a model, without its number of layers; a token uses `used` of `experts`."""

    embedding: int
    feed_forward: int
    heads: int
    kv_heads: int
    key_length: int
    vocabulary: int
    experts: int = 0
    used: int = 0


WIDTHS = (
    Sizes(4096, 14336, 32, 8, 128, 32000),
    Sizes(2048, 5632, 16, 4, 128, 32000),
    Sizes(1024, 2816, 8, 2, 128, 8192),
    Sizes(256, 768, 4, 2, 64, 1024),
    Sizes(64, 128, 4, 2, 16, 320),
)
"""Wide ones first."""

EXPERTS = Sizes(2048, 768, 16, 4, 128, 32000, experts=64, used=8)
SHAPES = {"1g": (WIDTHS[1], 22), "7g": (WIDTHS[0], 32), "moe": (EXPERTS, 8)}
"""Sizes and layers of models that have a name: 1.1 and 7.2 G weights; 2.6 G, most of them in 64
experts, of which a token uses 8 (0.5 G weights)."""


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


def outer(sizes: Sizes, mix: Mix) -> Iterator[Entry]:
    """What there is once."""
    table = (sizes.embedding, sizes.vocabulary)
    yield Entry("token_embd.weight", mix.usual, table)
    yield Entry("output_norm.weight", tp.F32, table[:1])
    yield Entry("output.weight", mix.output, table)


def has_more(number: int, layers: int) -> bool:
    """Whether a layer has more bits: the first and last eighth, and each third one between."""
    eighth = layers // 8
    return number < eighth or number >= 7 * layers // 8 or (number - eighth) % 3 == 2


def layer(sizes: Sizes, mix: Mix, number: int, *, more: bool = False) -> Iterator[Entry]:
    """The tensors of one layer; with `more` bits in some of them."""
    width, wide = sizes.embedding, sizes.heads * sizes.key_length
    keys = sizes.kv_heads * sizes.key_length
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "attn_q": (width, wide),
        "attn_k": (width, keys),
        "attn_v": (width, keys),
        "attn_output": (wide, width),
        "ffn_norm": (width,),
    }
    end, each = ("_exps", (sizes.experts,)) if sizes.experts else ("", ())
    if sizes.experts:
        shapes["ffn_gate_inp"] = (width, sizes.experts)
    shapes[f"ffn_gate{end}"] = shapes[f"ffn_up{end}"] = (width, sizes.feed_forward, *each)
    shapes[f"ffn_down{end}"] = (sizes.feed_forward, width, *each)
    for name, ne in shapes.items():
        matrix = mix.more if more and name.removesuffix("_exps") in MORE else mix.usual
        plain = len(ne) == 1 or name == "ffn_gate_inp"
        yield Entry(f"blk.{number}.{name}.weight", tp.F32 if plain else matrix, ne)


def all_layers(sizes: Sizes, mix: Mix, layers: int) -> list[Entry]:
    """The tensors of all layers."""
    parts = (layer(sizes, mix, i, more=has_more(i, layers)) for i in range(layers))
    return [entry for part in parts for entry in part]


def chosen(wanted: float, mix: Mix) -> tuple[Sizes, int]:
    """The widest sizes with some layers in `wanted` bytes, and how many there are. Raises
    OptionError."""
    for sizes in WIDTHS:
        if sizes.embedding % mix.usual.block:
            continue
        last = sizes
        # Layers with more bits are counted as if all were.
        fixed, each = (
            sum(e.nbytes for e in entries)
            for entries in (outer(sizes, mix), layer(sizes, mix, 0, more=True))
        )
        layers = int((wanted - fixed) // each)
        if layers >= FEWEST:
            return sizes, layers
    if layers >= 1:
        return last, layers
    raise OptionError(
        f"synthetic model: {wanted:.0f} bytes of {mix.usual.name} hold no layer; give at least "
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


def vocabulary(size: int) -> tuple[list[str], list[int]]:
    """Texts and kinds of tokens: bytes, letters, pairs of letters as room allows, and fillers."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(BYTES))]
    kinds = [2, 3, 3] + [6] * BYTES + [1] * (size - len(words))
    single = [SPACE, *string.ascii_lowercase]
    words += single + [a + b for a in single for b in single[1:]]
    words += [f"word{i}" for i in range(size - len(words))]
    return words[:size], kinds


def metadata(sizes: Sizes, layers: int) -> dict[str, bytes]:
    """Keys and their values as the file has them."""
    words, kinds = vocabulary(sizes.vocabulary)
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
    if sizes.experts:
        lengths |= {"expert_count": sizes.experts, "expert_used_count": sizes.used}
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
        if dtype.is_block:
            return self._blocks(dtype, count, size)
        return (self._random.standard_normal(count, np.float32) * size).astype(dtype.numpy)

    def _blocks(self, dtype: tp.DType, count: int, size: float) -> Any:
        """Blocks of random bits whose scales, f16, give values the standard deviation `size`.

        A second scale, of what is subtracted, is chosen so that the mean of the values is 0.
        """
        drawn = self._random.integers(0, 256, (count, dtype.size), np.uint8)
        # Where none is listed, the scale comes first.
        places = HALF_SCALES.get(dtype, (0,))
        parts = [values(dtype, drawn[:SEEN], places, place) for place in places]
        factors = [1.0, *(-parts[0].mean() / part.mean() for part in parts[1:])]
        spread = sum(f * part for f, part in zip(factors, parts, strict=True)).std()
        scales = self._random.uniform(0.5, 1.5, (count, 1)) * size / spread
        for place, factor in zip(places, factors, strict=True):
            drawn[:, place : place + 2] = (scales * factor).astype("<f2").view(np.uint8)
        return drawn


def values(dtype: tp.DType, drawn: Any, places: Sequence[int], one: int) -> Any:
    """What `drawn` blocks hold where the scale at the place `one` is 1 and others are 0."""
    drawn = drawn.copy()
    for place in places:
        scale = np.array([1.0 if place == one else 0.0], "<f2")
        drawn[:, place : place + 2] = scale.view(np.uint8)
    return blocks.decode(drawn.tobytes(), dtype, (len(drawn), dtype.block))


def write_model(path: Path, size: float | str, kind: str, seed: int = 7) -> Path:
    """Write a model of at most `size` bytes of weights, or of that shape. Raises OptionError."""
    mix = TYPES[kind]
    sizes, layers = SHAPES[size] if isinstance(size, str) else chosen(size, mix)
    entries = [*outer(sizes, mix), *all_layers(sizes, mix, layers)]
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
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--bytes", type=float, default=8e9, help="of weights, at most")
    size.add_argument("--shape", choices=SHAPES, help="1.1 or 7.2 G weights")
    parser.add_argument("--type", choices=TYPES, default="q8_0")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    size = arguments.shape or arguments.bytes
    write_model(arguments.file, size, arguments.type, arguments.seed)
    print(f"{arguments.file}: {arguments.file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
