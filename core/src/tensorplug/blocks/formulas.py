"""Decoders of common block types: the same values as `gguf`, bit for bit, several times faster.

NumPy spends its time on short inner loops, not on arithmetic: over a strided view of 16 or 32 bytes
per block it loops block by block. So each decoder first gathers a field of all blocks into one
contiguous array, and all arithmetic runs over long arrays.
"""

from collections.abc import Callable

import numpy as np

from tensorplug.dtypes import (
    Q1_0,
    Q2_0,
    Q2_K,
    Q3_K,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    Q8_1,
    Q8_K,
    DType,
)
from tensorplug.graph.tensor import Array

Decoder = Callable[[Array, Array], None]
"""Decodes blocks, uint8 [n, bytes], into f32 [n, elements]; both arrays are contiguous."""


def _field(blocks: Array, start: int, size: int) -> Array:
    """Bytes `start` to `start + size` of each block as a contiguous array: uint8 [n, size]."""
    items = blocks[:, start : start + size].view(np.dtype((np.void, size)))
    return items.copy().view(np.uint8).reshape(-1, size)


def _half(blocks: Array, start: int) -> Array:
    """The f16 at byte `start` of each block as f32 [n, 1]."""
    return blocks[:, start : start + 2].view(np.float16).astype(np.float32)


def _interleaved(parts: list[Array], out: Array) -> None:
    """Concatenate uint8 arrays [n, size] along axis 1 into uint8 `out` [n, len(parts) * size]."""
    size = parts[0].shape[1]
    items = out.view(np.dtype((np.void, size)))
    for i, part in enumerate(parts):
        items[:, i] = part.view(np.dtype((np.void, size)))[:, 0]


def _nibbles(packed: Array, group: int) -> Array:
    """For each `group` bytes, their low nibbles, then their high nibbles: uint8 [n, 2 * bytes]."""
    both = np.empty((len(packed), 2 * packed.shape[1]), np.uint8)
    low, high = (part.reshape(-1, group) for part in (packed & 15, packed >> 4))
    _interleaved([low, high], both.reshape(-1, 2 * group))
    return both


def _scaled(codes: Array, scales: Array, out: Array) -> None:
    """`out = codes * scales`; scales are [n, groups], one for each equal group of a block."""
    np.copyto(out, codes)
    groups = out.reshape(*scales.shape, -1)
    np.multiply(groups, scales[..., None], groups)


def _shifted(out: Array, offsets: Array, sign: int) -> None:
    """Add offsets [n, groups] to the groups of `out`, or subtract them if `sign` is negative."""
    groups = out.reshape(*offsets.shape, -1)
    (np.add if sign > 0 else np.subtract)(groups, offsets[..., None], groups)


def _q8_0(blocks: Array, out: Array) -> None:
    _scaled(_field(blocks, 2, 32).view(np.int8), _half(blocks, 0), out)


def _q8_1(blocks: Array, out: Array) -> None:
    # The f16 at byte 2, the sum of the values, is needed only by dot products.
    _scaled(_field(blocks, 4, 32).view(np.int8), _half(blocks, 0), out)


def _q8_k(blocks: Array, out: Array) -> None:
    # The last 32 bytes, sums of 16 codes each, are needed only by dot products.
    scales = _field(blocks, 0, 4).view(np.float32)
    _scaled(_field(blocks, 4, 256).view(np.int8), scales, out)


def _q1_0(blocks: Array, out: Array) -> None:
    codes = np.unpackbits(_field(blocks, 2, 16), axis=1, bitorder="little")
    codes <<= 1
    codes -= 1  # wraps around; read as signed it is right
    _scaled(codes.view(np.int8), _half(blocks, 0), out)


def _q2_0(blocks: Array, out: Array) -> None:
    packed = _field(blocks, 2, 16).reshape(-1, 1)
    codes = (packed >> np.array([0, 2, 4, 6], np.uint8)) & 3
    codes -= 1  # wraps around; read as signed it is right
    _scaled(codes.view(np.int8).reshape(-1, 64), _half(blocks, 0), out)


def _q4_0(blocks: Array, out: Array) -> None:
    codes = _nibbles(_field(blocks, 2, 16), 16).view(np.int8)
    codes -= 8
    _scaled(codes, _half(blocks, 0), out)


def _q4_1(blocks: Array, out: Array) -> None:
    _scaled(_nibbles(_field(blocks, 4, 16), 16), _half(blocks, 0), out)
    _shifted(out, _half(blocks, 2), 1)


def _fifth_bits(blocks: Array, start: int) -> Array:
    """The 32 bits from byte `start` on, each as 0 or 16: uint8 [n, 32]."""
    bits = np.unpackbits(_field(blocks, start, 4), axis=1, bitorder="little")
    bits <<= 4
    return bits


def _q5_0(blocks: Array, out: Array) -> None:
    codes = _nibbles(_field(blocks, 6, 16), 16)
    codes |= _fifth_bits(blocks, 2)
    codes -= 16  # wraps around; read as signed it is right
    _scaled(codes.view(np.int8), _half(blocks, 0), out)


def _q5_1(blocks: Array, out: Array) -> None:
    codes = _nibbles(_field(blocks, 8, 16), 16)
    codes |= _fifth_bits(blocks, 4)
    _scaled(codes, _half(blocks, 0), out)
    _shifted(out, _half(blocks, 2), 1)


def _six_bit_pairs(packed: Array) -> tuple[Array, Array]:
    """Unpack eight scales and eight minima of six bits from twelve bytes: f32 [n, 8] each."""
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (rest & 15) | ((first >> 2) & 48)], axis=1)
    minima = np.concatenate([second & 63, (rest >> 4) | ((second >> 2) & 48)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _q4_k(blocks: Array, out: Array) -> None:
    scales, minima = _six_bit_pairs(_field(blocks, 4, 12))
    _scaled(_nibbles(_field(blocks, 16, 128), 32), _half(blocks, 0) * scales, out)
    _shifted(out, _half(blocks, 2) * minima, -1)


def _q5_k(blocks: Array, out: Array) -> None:
    scales, minima = _six_bit_pairs(_field(blocks, 4, 12))
    codes = _nibbles(_field(blocks, 48, 128), 32)
    high = _field(blocks, 16, 32)
    _interleaved_or(codes, [((high >> bit) & 1) << 4 for bit in range(8)])
    _scaled(codes, _half(blocks, 0) * scales, out)
    _shifted(out, _half(blocks, 2) * minima, -1)


def _interleaved_or(codes: Array, parts: list[Array]) -> None:
    """Bitwise OR of `codes` with the uint8 arrays [n, size] of `parts`, concatenated; in place."""
    bits = np.empty_like(codes)
    _interleaved(parts, bits)
    codes |= bits


def _two_bits(packed: Array) -> Array:
    """Two-bit codes: for each 32 bytes, the lowest two bits of every byte first: uint8."""
    codes = np.empty((len(packed), 4 * packed.shape[1]), np.uint8)
    groups = packed.reshape(-1, 32)
    _interleaved([(groups >> shift) & 3 for shift in (0, 2, 4, 6)], codes.reshape(-1, 128))
    return codes


def _q2_k(blocks: Array, out: Array) -> None:
    packed = _field(blocks, 0, 16)
    scales, minima = (part.astype(np.float32) for part in (packed & 15, packed >> 4))
    _scaled(_two_bits(_field(blocks, 16, 64)), _half(blocks, 80) * scales, out)
    _shifted(out, _half(blocks, 82) * minima, -1)


def _q3_k(blocks: Array, out: Array) -> None:
    codes = _two_bits(_field(blocks, 32, 64))
    high = _field(blocks, 0, 32)
    _interleaved_or(codes, [((high >> bit) & 1) << 2 for bit in range(8)])
    codes -= 4  # wraps around; read as signed it is right
    packed = _field(blocks, 96, 12)
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    top = np.concatenate([(packed[:, 8:] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=1)
    scales = (low | (top << 4)).astype(np.float32) - 32
    _scaled(codes.view(np.int8), _half(blocks, 108) * scales, out)


def _q6_k(blocks: Array, out: Array) -> None:
    # Each half of a block has 64 bytes of low four bits (32 bytes hold two groups of 32 codes) and
    # 32 bytes of high two bits (one pair for each of the four groups).
    low = _field(blocks, 0, 128).reshape(-1, 64)
    codes = np.empty((len(blocks), 256), np.uint8)
    _interleaved([low & 15, low >> 4], codes.reshape(-1, 128))
    codes |= _two_bits(_field(blocks, 128, 64)) << 4
    codes -= 32  # wraps around; read as signed it is right
    scales = _field(blocks, 192, 16).view(np.int8).astype(np.float32)
    _scaled(codes.view(np.int8), _half(blocks, 208) * scales, out)


DECODERS: dict[DType, Decoder] = {
    Q8_0: _q8_0,
    Q8_1: _q8_1,
    Q8_K: _q8_k,
    Q1_0: _q1_0,
    Q2_0: _q2_0,
    Q4_0: _q4_0,
    Q4_1: _q4_1,
    Q5_0: _q5_0,
    Q5_1: _q5_1,
    Q4_K: _q4_k,
    Q5_K: _q5_k,
    Q6_K: _q6_k,
    Q2_K: _q2_k,
    Q3_K: _q3_k,
}
