"""Rows sorted in parts, which are then merged two by two."""

from tensorplug.dtypes import I64
from tensorplug.tensor import Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element
from tensorplug_simt.lowering import LIMIT, NoKernel
from tensorplug_simt.program import Kernel, Launch, Region, scratch

MERGE_NUMBERS = (("count", "uint"), ("run", "int"), ("side", "int"), ("last", "int"))
"""Of the parameter block of a kernel that merges."""


def merges(kernel: Kernel, node: Tensor, keys: Region, part: int, facts: Facts) -> list[Launch]:
    """Launches that double the length of sorted runs, from one half of `keys` to the other.

    At first runs have `part` elements.
    """
    length, rows = keys.ne[:2]
    runs = [part]
    while runs[-1] * 2 < length:
        runs.append(runs[-1] * 2)
    return [
        per_element(
            kernel,
            {"keys": keys, "y": node},
            length * rows,
            facts,
            run=run,
            side=i % 2,
            last=int(run == runs[-1]),
        )
        for i, run in enumerate(runs)
    ]


def keys_of(x: Tensor) -> Region:
    """Scratch memory for two halves, each with a number for every element of x."""
    length, rows = x.ne[0], x.rows
    if 2 * x.size > LIMIT:
        raise NoKernel(f"{x} has more than {LIMIT // 2} elements")
    row = length * I64.size
    return scratch(I64, (length, rows, 2, 1), (I64.size, row, row * rows, 2 * row * rows))
