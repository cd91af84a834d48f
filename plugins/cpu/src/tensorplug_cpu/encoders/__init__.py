"""Encoders of block types: searches for the block that is nearest to its values.

Each module holds a family of formats and ends with a table `ENCODERS` of its own; the tables are
joined here. To add a family, import its module and add its table to the union below. An encoder
takes `values`, f32 [blocks, elements of a block], and `weights` of the same shape (how much an
error of each value counts) or None, both without gaps, and returns the blocks, uint8 [blocks,
bytes of a block]. It is called with at most a few hundred blocks at a time, so its temporaries
may be several times as large as its input, and from several threads at once.
"""

from tensorplug.dtypes import IQ1_S, IQ2_XS, IQ2_XXS, DType
from tensorplug_cpu.encoders import iq1, iq2, iq3, k, legacy, nl, simple
from tensorplug_cpu.encoders.common import Encoder
from tensorplug_cpu.encoders.legacy import ROW_WEIGHTS

__all__ = ["ENCODERS", "NEEDS_IMPORTANCE", "ROW_WEIGHTS"]

NEEDS_IMPORTANCE = frozenset({IQ1_S, IQ2_XXS, IQ2_XS})
"""Formats so coarse that an encoder must know which columns count: no op can write them."""

ENCODERS: dict[DType, Encoder] = {
    **simple.ENCODERS,
    **legacy.ENCODERS,
    **k.ENCODERS,
    **nl.ENCODERS,
    **iq1.ENCODERS,
    **iq2.ENCODERS,
    **iq3.ENCODERS,
}
