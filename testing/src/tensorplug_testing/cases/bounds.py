"""The allowed error of each element of a product, from the sizes of its operands."""

import math

import numpy as np

from tensorplug.device import Backend, Rounding, Tensor
from tensorplug_cpu.reference import Memory
from tensorplug_testing.cases.case import Array, Built
from tensorplug_testing.cases.expected import kept

SUM = 4 * 2.0**-24
"""The factor of the allowed error of f32 sums. The others are the square root of the number of
terms, and the lengths of the operands.

A plain loop has a third of this error; sums in lanes or tiles have much less.
"""
SPREAD = 6
"""The factor for rounded operands. If the errors of operands are independent and at most d, their
sum with weights w exceeds 6 * d * |w| in one of 30 million elements (Hoeffding's inequality)."""
HALF = 2.0**-9
"""The largest relative error of a number rounded to bf16. That of f16 is smaller."""
BYTE = 1 / 254
"""The largest error of a number rounded to a byte, relative to the largest number of its group."""


ROUNDED = frozenset({"mul_mat", "mul_mat_id", "flash_attn_ext"})
"""Ops of which a stream may round the operands."""


def rounding_of(backend: Backend, node: Tensor) -> Rounding:
    """The rounding that a stream declares for a node; only products may have some."""
    return backend.rounding(node) if node.op in ROUNDED else Rounding.NONE


def product_bound(built: Built, rounding: Rounding, *, representable: bool) -> Array:
    """The allowed error of each element of a `mul_mat` or `mul_mat_id`, in the node's shape."""
    lengths_w, peaks_w, lengths_x, peaks_x = kept(built, "sizes", lambda: _sizes(built))
    terms = built.node.sources[0].ne[0]
    with np.errstate(invalid="ignore"):  # infinite operands give results that are not finite
        bound = SUM * (math.sqrt(terms) + 4) * lengths_w * lengths_x
        if rounding is Rounding.HALVES:
            bound = bound + SPREAD * HALF * (lengths_w * peaks_x + peaks_w * lengths_x)
        if rounding is Rounding.BYTES and not representable:
            bound = bound + SPREAD * BYTE * lengths_w * peaks_x
    return np.broadcast_to(bound, built.node.ne[::-1]).reshape(built.node.shape)


def _sizes(built: Built) -> list[Array]:
    """For each element: Euclidean length and largest magnitude of its row of w and its row of x."""
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
    """The values of a source, with four dimensions in NumPy order."""
    source, memory = built.node.sources[index], Memory()
    memory.add(source.root)
    slots = memory.window(source.root)
    slots[...] = built.stored[source.root].reshape(slots.shape)
    return memory.value(source)
