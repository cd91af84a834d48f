"""Values of block types, and blocks of values.

The `gguf` package decodes most types exactly as ggml does, and encodes some. The few that it does
not decode are spelled out here. Where it does not encode, the device's encoder is used: a search
has no second, simpler definition, and is compared with ggml instead.
"""

# NumPy types most of what its functions return as Any.
# mypy: no-warn-return-any

from collections.abc import Callable

import gguf
import numpy as np

from tensorplug.device import Array, Unsupported
from tensorplug.dtypes import (
    MXFP4,
    Q1_0,
    Q2_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q8_K,
    TQ1_0,
    TQ2_0,
    DType,
)
from tensorplug_cpu.encoders import ENCODERS, NEEDS_IMPORTANCE

_PACKAGED = frozenset({Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, TQ1_0, TQ2_0, MXFP4})

ENCODED = _PACKAGED | (ENCODERS.keys() - NEEDS_IMPORTANCE)
"""Types that values can be encoded to by themselves."""


def decode_rows(dtype: DType, rows: Array) -> Array:
    """Return the float64 values of stored rows: the last axis is bytes, then elements."""
    blocks = rows.reshape(-1, dtype.size)
    shape = (*rows.shape[:-1], rows.shape[-1] // dtype.size * dtype.block)
    own = _OWN_DECODERS.get(dtype)
    if own is not None:
        return own(blocks).reshape(shape)
    if not blocks.size:
        return np.empty(shape)
    kind = gguf.GGMLQuantizationType(dtype.id)
    return gguf.quants.dequantize(blocks, kind).astype(np.float64).reshape(shape)


def encode_rows(dtype: DType, values: Array) -> Array:
    """Return the stored rows of float32 `values`: the last axis is elements, then bytes."""
    if dtype not in ENCODED:
        known = ", ".join(sorted(t.name for t in ENCODED))
        raise Unsupported(f"reference: no encoder for {dtype.name}; there are some for {known}")
    shape = (*values.shape[:-1], dtype.row_size(values.shape[-1]))
    if not values.size:
        return np.empty(shape, np.uint8)
    flat = np.ascontiguousarray(values, np.float32).reshape(-1, values.shape[-1])
    if dtype not in _PACKAGED:
        with np.errstate(all="ignore"):
            return ENCODERS[dtype](flat.reshape(-1, dtype.block), None).reshape(shape)
    kind = gguf.GGMLQuantizationType(dtype.id)
    encoded: Array = gguf.quants.quantize(flat, kind).reshape(shape)
    return encoded


def _number(blocks: Array, start: int, kind: str) -> Array:
    """One little-endian number per block, as a column of float64."""
    end = start + np.dtype(kind).itemsize
    return np.ascontiguousarray(blocks[:, start:end]).view(kind).astype(np.float64)


def _codes(packed: Array, bits: int) -> Array:
    """Codes of `bits` bits each, the lowest bits of a byte first, as float64."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed[:, :, None] >> shifts) & np.uint8(2**bits - 1)
    return codes.reshape(len(packed), -1).astype(np.float64)


def _q1_0(blocks: Array) -> Array:
    """f16 scale, then 128 signs: bit 1 is plus."""
    return _number(blocks, 0, "<f2") * (2 * _codes(blocks[:, 2:], bits=1) - 1)


def _q2_0(blocks: Array) -> Array:
    """f16 scale, then 64 codes of 2 bits that mean -1, 0, 1, 2."""
    return _number(blocks, 0, "<f2") * (_codes(blocks[:, 2:], bits=2) - 1)


def _q8_1(blocks: Array) -> Array:
    """f16 scale, f16 sum (for products only), then 32 signed bytes."""
    return _number(blocks, 0, "<f2") * blocks[:, 4:36].view(np.int8)


def _q8_k(blocks: Array) -> Array:
    """f32 scale, 256 signed bytes, then sums (for products only)."""
    return _number(blocks, 0, "<f4") * blocks[:, 4:260].view(np.int8)


_OWN_DECODERS: dict[DType, Callable[[Array], Array]] = {
    Q1_0: _q1_0,
    Q2_0: _q2_0,
    Q8_1: _q8_1,
    Q8_K: _q8_k,
}
