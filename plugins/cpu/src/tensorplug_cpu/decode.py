"""Stored rows to f32: common types by our own decoders, the others by the `gguf` package."""

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from tensorplug.dtypes import BF16, F16, F32, F64, DType
from tensorplug.errors import Unsupported
from tensorplug.tensor import Array
from tensorplug_cpu.blocks import DECODERS
from tensorplug_cpu.convert import bf16_to_f32, f16_to_f32
from tensorplug_cpu.layout import viewed

CHUNK = 1 << 17
"""Elements that are decoded at a time: with their temporaries they stay in a level-2 cache."""


def rows_per_chunk(row: int) -> int:
    """How many rows of `row` elements to decode at a time."""
    return max(1, CHUNK // max(row, 1))


@cache
def gguf_quants() -> ModuleType:
    """The `gguf.quants` module, imported when the first block type is met."""
    from gguf import quants  # noqa: PLC0415 - as slow to import as NumPy, and not always needed

    module: ModuleType = quants
    return module


def gguf_type(dtype: DType) -> Any:
    """What `gguf` calls `dtype`, or None where it does not know it."""
    known = gguf_quants().GGMLQuantizationType
    return known(dtype.id) if dtype.id in known.__members__.values() else None


@cache
def can_decode(dtype: DType) -> bool:
    """Whether values of `dtype` can be turned into f32."""
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
    """Decode rows of stored bytes, uint8 [rows, bytes], into f32 [rows, elements] without gaps."""
    if dtype in DECODERS:
        DECODERS[dtype](raw.reshape(-1, dtype.size), viewed(out, (-1, dtype.block)))
    elif dtype in _PLAIN:
        _PLAIN[dtype](raw.view(dtype.storage), out)
    elif can_decode(dtype):
        np.copyto(out, gguf_quants().dequantize(raw, gguf_type(dtype)))
    else:
        raise Unsupported(f"cpu: values of type {dtype.name} cannot be decoded")


def _copy(source: Array, out: Array) -> None:
    np.copyto(out, source, casting="same_kind")


_PLAIN = {F32: _copy, F64: _copy, F16: f16_to_f32, BF16: bf16_to_f32}
