"""Copies: to other memory, other layout, other type; joined, tiled, or into a part of a tensor."""

# NumPy types most of what its functions return as Any.
# mypy: no-warn-return-any

import numpy as np

from tensorplug.device import Array, Tensor
from tensorplug_cpu.reference.elementwise import tiled
from tensorplug_cpu.reference.memory import Memory
from tensorplug_cpu.reference.table import Params, moves, values


def copied(node: Tensor, memory: Memory) -> None:
    """Elements of the first source in order; bit by bit where the type stays."""
    x, slots = node.sources[0], memory.window(node)
    if x.dtype is node.dtype:
        slots[...] = memory.window(x).copy().reshape(slots.shape)
    else:
        memory.store(node, memory.value(x).reshape(node.ne[::-1]))


for _op in ("dup", "cont", "cpy"):
    moves(_op)(copied)


@values("concat")
def concat(p: Params, a: Array, b: Array) -> Array:
    return np.concatenate([a, b], axis=3 - p["dim"])


@values("repeat")
def repeat(p: Params, x: Array) -> Array:
    return tiled(x, p["ne"][::-1])


def _part_indices(p: Params, part: Array) -> Array:
    """Where the elements of `part` lie in the flat result; f32 has four bytes."""
    d3, d2, d1, d0 = np.indices(part.shape)
    return (p["offset"] + d3 * p["nb3"] + d2 * p["nb2"] + d1 * p["nb1"] + d0 * 4) // 4


@values("acc")
def acc(p: Params, a: Array, part: Array) -> Array:
    y = a.copy()
    np.add.at(y.reshape(-1), _part_indices(p, part), part)
    return y


@values("set")
def set_part(p: Params, a: Array, part: Array) -> Array:
    y = a.copy()
    y.reshape(-1)[_part_indices(p, part)] = part
    return y
