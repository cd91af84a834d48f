"""Random stored blocks: any codes, also those that no encoder would choose, with sane scales."""

from typing import Any

import numpy as np
import numpy.typing as npt

import tensorplug as tp
from tensorplug.dtypes import (
    IQ1_M,
    IQ1_S,
    IQ2_S,
    IQ2_XS,
    IQ2_XXS,
    IQ3_S,
    IQ3_XXS,
    IQ4_NL,
    IQ4_XS,
    NVFP4,
    Q1_0,
    Q2_0,
    Q2_K,
    Q3_K,
    Q4_1,
    Q5_0,
    Q5_1,
    Q5_K,
    Q8_1,
    Q8_K,
    TQ1_0,
    TQ2_0,
)

Array = npt.NDArray[Any]

HALF_SCALES: dict[tp.DType, tuple[int, ...]] = {
    Q1_0: (0,),
    Q2_0: (0,),
    Q8_1: (0, 2),
    Q2_K: (80, 82),
    Q3_K: (108,),
    tp.Q4_K: (0, 2),
    Q5_K: (0, 2),
    tp.Q6_K: (208,),
    IQ1_S: (0,),
    IQ2_XXS: (0,),
    IQ2_XS: (0,),
    IQ2_S: (0,),
    IQ3_XXS: (0,),
    IQ3_S: (0,),
    IQ4_NL: (0,),
    IQ4_XS: (0,),
}
"""Byte offsets of the f16 scales in a block."""

SCATTERED = frozenset({*HALF_SCALES, Q8_K, NVFP4, IQ1_M})
"""Types whose blocks are drawn by `random_rows`."""


def random_rows(rng: np.random.Generator, dtype: tp.DType, shape: tuple[int, ...]) -> Array:
    """Stored rows of a tensor of `shape` (NumPy order): uint8, the last axis in bytes."""
    count = int(np.prod(shape)) // dtype.block
    blocks = rng.integers(0, 256, (count, dtype.size), np.uint8)
    # Some scales are so small that an f16 stores only a few of their digits (subnormal numbers).
    scales = rng.uniform(0.01, 0.02, (count, 2)) * rng.choice([-1, 1, 1e-4], (count, 2))
    for column, at in enumerate(HALF_SCALES.get(dtype, ())):
        blocks[:, at : at + 2] = scales[:, column : column + 1].astype("<f2").view(np.uint8)
    if dtype is Q8_K:
        blocks[:, :4] = scales[:, :1].astype("<f4").view(np.uint8)
    if dtype is NVFP4:
        blocks[:, :4] = rng.integers(0x20, 0x40, (count, 4))
    if dtype is IQ1_M:
        _scatter_iq1_m_scale(blocks, scales[:, 0])
    return blocks.reshape(*shape[:-1], dtype.row_size(shape[-1]))


SCALED: dict[tp.DType, int] = {
    **{dtype: places[0] for dtype, places in HALF_SCALES.items()},
    **dict.fromkeys((tp.Q4_0, Q4_1, Q5_0, Q5_1, tp.Q8_0), 0),
    TQ1_0: 52,
    TQ2_0: 64,
}
"""Byte offset in a block of the f16 scale that multiplies all its values, for types with one."""


def spoil_scale(rng: np.random.Generator, dtype: tp.DType, rows: Array, scale: float) -> None:
    """Write `scale`, NaN or an infinity, over the scale of one block of stored rows."""
    blocks = rows.reshape(-1, dtype.size)
    block, at = blocks[rng.integers(len(blocks))], SCALED[dtype]
    block[at : at + 2] = np.array([scale], "<f2").view(np.uint8)


def _scatter_iq1_m_scale(blocks: Array, scales: Array) -> None:
    """Store scales of iq1_m: the f16 is in the upper four bits of the last four 16-bit words."""
    bits = scales.astype("<f2").view(np.uint16)
    for word in range(4):
        upper = 48 + 2 * word + 1
        nibble = (bits >> (4 * word)) & 0xF
        blocks[:, upper] = (blocks[:, upper] & 0x0F) | (nibble << 4).astype(np.uint8)
