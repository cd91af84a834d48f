"""Stored rows to f32. Block types are decoded by the `gguf` package where it can."""

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from tensorplug.dtypes import BF16, F16, F32, F64, DType
from tensorplug.errors import Unsupported
from tensorplug.tensor import Array
from tensorplug_cpu.convert import bf16_to_f32, f16_to_f32

CHUNK = 1 << 16
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
    theirs = gguf_type(dtype)
    if theirs is None:
        return False
    try:
        gguf_quants().dequantize(np.zeros((1, dtype.size), np.uint8), theirs)
    except NotImplementedError:
        return False
    return True


def decode_rows(dtype: DType, raw: Array, out: Array) -> None:
    """Decode rows of stored bytes, uint8 [rows, bytes], into f32 [rows, elements].

    The elements of a row lie without gaps on both sides.
    """
    simple = _PLAIN.get(dtype)
    if simple is not None:
        simple(raw.view(dtype.storage), out)
        return
    if not can_decode(dtype):
        raise Unsupported(f"cpu: values of type {dtype.name} cannot be decoded")
    np.copyto(out, gguf_quants().dequantize(raw, gguf_type(dtype)))


def _copy(source: Array, out: Array) -> None:
    np.copyto(out, source, casting="same_kind")


_PLAIN = {F32: _copy, F64: _copy, F16: f16_to_f32, BF16: bf16_to_f32}
