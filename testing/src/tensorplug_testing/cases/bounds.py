"""How far an element of a product may be from the exact one, by the sizes of its operands."""

import math

import numpy as np

from tensorplug.device import Rounding
from tensorplug_cpu.reference import Memory
from tensorplug_testing.cases.case import Array, Built
from tensorplug_testing.cases.expected import kept

SUM = 4 * 2.0**-24
"""Rounding of f32 sums: times the square root of the number of terms, and the operands' lengths.

The errors of a plain loop are a third of it, those of sums in lanes or tiles much less.
"""
SPREAD = 6
"""Errors of operands are independent and bounded by d: their sum with weights w is farther than
6 * d * |w| from 0 once in 30 million elements (Hoeffding's inequality)."""
HALF = 2.0**-9
"""Largest relative error of a number rounded to bf16; that of f16 is smaller."""
BYTE = 1 / 254
"""Largest error of a number rounded to a byte, as a share of the largest of its group."""


def product_bound(built: Built, rounding: Rounding, *, representable: bool) -> Array:
    """Allowed distance for each element of a `mul_mat` or `mul_mat_id`, in the node's shape."""
    lengths_w, peaks_w, lengths_x, peaks_x = kept(built, "sizes", lambda: _sizes(built))
    terms = built.node.sources[0].ne[0]
    with np.errstate(invalid="ignore"):  # infinite operands: results are not finite either
        bound = SUM * (math.sqrt(terms) + 4) * lengths_w * lengths_x
        if rounding is Rounding.HALVES:
            bound = bound + SPREAD * HALF * (lengths_w * peaks_x + peaks_w * lengths_x)
        if rounding is Rounding.BYTES and not representable:
            bound = bound + SPREAD * BYTE * lengths_w * peaks_x
    return np.broadcast_to(bound, built.node.ne[::-1]).reshape(built.node.shape)


def _sizes(built: Built) -> list[Array]:
    """Euclidean length and largest magnitude of the rows of w and of x that make each element."""
    w, x, *ids = (_values(built, n) for n in range(len(built.node.sources)))
    sizes_w, sizes_x = (
        [np.sqrt((a * a).sum(axis=-1)), np.abs(a).max(axis=-1, initial=0)] for a in (w, x)
    )
    if ids:
        chosen = ids[0][0, 0].astype(int)
        token, slot = np.indices(chosen.shape)
        slot %= x.shape[2]
        return [
            *[size[0][chosen][None] for size in sizes_w],
            *[size[0][token, slot][None, ..., None] for size in sizes_x],
        ]
    copies = [n // max(few, 1) for n, few in zip(x.shape[:2], w.shape[:2], strict=True)]
    shared = [size.repeat(copies[0], 0).repeat(copies[1], 1) for size in sizes_w]
    return [*[size[..., None, :] for size in shared], *[size[..., None] for size in sizes_x]]


def _values(built: Built, index: int) -> Array:
    """The values of a source, in four dimensions, NumPy order."""
    source, memory = built.node.sources[index], Memory()
    memory.add(source.root)
    slots = memory.window(source.root)
    slots[...] = built.stored[source.root].reshape(slots.shape)
    return memory.value(source)
