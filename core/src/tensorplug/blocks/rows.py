"""Decoding of stored rows to f32: common types by DECODERS, the others by the `gguf` package."""

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from tensorplug.blocks.formulas import DECODERS
from tensorplug.blocks.half import bf16_to_f32, f16_to_f32
from tensorplug.dtypes import BF16, F16, F32, F64, DType
from tensorplug.errors import Unsupported
from tensorplug.graph.tensor import Array

CHUNK = 1 << 17
"""Elements decoded at a time: with temporaries they fit into a level-2 cache."""


def rows_per_chunk(row: int) -> int:
    """The number of rows of `row` elements to decode at a time."""
    return max(1, CHUNK // max(row, 1))


@cache
def gguf_quants() -> ModuleType:
    """Import and return `gguf.quants`. Raises Unsupported if the package is missing."""
    try:
        return import_module("gguf.quants")  # lazily: its import takes as long as NumPy's
    except ImportError as error:
        raise Unsupported(
            "blocks: the tables of i-quants, tq1_0, tq2_0, mxfp4 and nvfp4 are in the package "
            f"gguf ({error}); pip install gguf"
        ) from error


def gguf_type(dtype: DType) -> Any:
    """The GGMLQuantizationType of `dtype`, or None if `gguf` does not know the type."""
    known = gguf_quants().GGMLQuantizationType
    return known(dtype.id) if dtype.id in known.__members__.values() else None


@cache
def can_decode(dtype: DType) -> bool:
    """True if `decode_rows` can decode `dtype`."""
    if not dtype.is_block:
        return dtype.is_float
    theirs = None if dtype in DECODERS else gguf_type(dtype)
    if theirs is None:
        return dtype in DECODERS
    try:
        gguf_quants().dequantize(np.zeros((1, dtype.size), np.uint8), theirs)
    except NotImplementedError:
        return False
    return True


def decode_rows(dtype: DType, raw: Array, out: Array) -> None:
    """Decode stored bytes, uint8 [rows, bytes], into contiguous f32 [rows, elements].

    Raises Unsupported for types that `can_decode` rejects.
    """
    with np.errstate(all="ignore"):  # scales may be infinite or NaN
        _decode_rows(dtype, raw, out)


def _decode_rows(dtype: DType, raw: Array, out: Array) -> None:
    if dtype in DECODERS:
        blocks = out.reshape(-1, dtype.block)
        assert not blocks.size or np.may_share_memory(blocks, out)
        DECODERS[dtype](raw.reshape(-1, dtype.size), blocks)
    elif dtype in _PLAIN:
        _PLAIN[dtype](raw.view(dtype.storage), out)
    elif can_decode(dtype):
        np.copyto(out, gguf_quants().dequantize(raw, gguf_type(dtype)))
    else:
        raise Unsupported(f"blocks: {dtype.name} is not decoded; float and block types are")


def _copy(source: Array, out: Array) -> None:
    np.copyto(out, source, casting="same_kind")


_PLAIN = {F32: _copy, F64: _copy, F16: f16_to_f32, BF16: bf16_to_f32}
