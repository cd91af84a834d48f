"""IQ3_XXS and IQ3_S: tuples of four magnitudes 1, 3, ..., 15 from grids of 256 and 512 points.

Groups hold 32 values. Scales are odd multiples of a unit, 0 to 15 standing for 1 to 31 units.
"""

import numpy as np

from tensorplug.device import Array
from tensorplug.dtypes import IQ3_S, IQ3_XXS, DType
from tensorplug_cpu.encoders.common import Encoder, as_bytes, nibbles
from tensorplug_cpu.encoders.iq_grid import grid
from tensorplug_cpu.encoders.iq_search import (
    Search,
    by_block,
    own_weights,
    quantised,
    search,
    signs_and_scales,
)

XXS = Search(top=15, step=0.2, tries=15, tiny=1e-8, even_signs=True)
S = Search(top=15, step=0.2, tries=9, tiny=1e-38, even_signs=False, again="touched")

XXS_UNIT, S_UNIT = np.float32(1.0125), np.float32(1.033)
"""Units are stored a little larger than they were found: that lowers the error on average."""


def _iq3_xxs(values: Array, weights: Array | None) -> Array:
    """f16 unit, 64 bytes of points, then eight times 4 x 7 bits of signs and 4 bits of scale."""
    blocks = len(values)
    weight = own_weights(values, weights)
    fit = search(grid("IQ3_XXS"), XXS, values.reshape(-1, 32), weight.reshape(-1, 32))
    scales, unit = quantised(fit.scale.reshape(blocks, 8), 16)
    fields = [
        as_bytes(unit * XXS_UNIT, "<f2"),
        by_block(fit.numbers, blocks).astype(np.uint8),
        signs_and_scales(by_block(fit.signs, blocks), scales),
    ]
    return np.concatenate(fields, axis=1)


def _iq3_s(values: Array, weights: Array | None) -> Array:
    """f16 unit, low bytes of 64 points, their ninth bits, 32 bytes of signs, 8 scales.

    Behind a group of zeros ggml (0.25.3) stores points and signs in the wrong place; we do not.
    """
    blocks = len(values)
    weight = own_weights(values, weights)
    fit = search(grid("IQ3_S"), S, values.reshape(-1, 32), weight.reshape(-1, 32))
    scales, unit = quantised(fit.scale.reshape(blocks, 8), 16)
    numbers = by_block(fit.numbers, blocks)
    fields = [
        as_bytes(unit * S_UNIT, "<f2"),
        (numbers & 255).astype(np.uint8),
        np.packbits(numbers > 255, axis=1, bitorder="little"),
        by_block(fit.signs, blocks),
        nibbles(scales, 1),
    ]
    return np.concatenate(fields, axis=1)


ENCODERS: dict[DType, Encoder] = {IQ3_XXS: _iq3_xxs, IQ3_S: _iq3_s}
