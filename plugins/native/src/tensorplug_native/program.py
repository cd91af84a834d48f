"""The program of a plan as the library reads it: its structures and numbers.

This is the one place for what Python and C++ share: `headers` writes `cpp/tables.h` from it.
"""

from enum import IntEnum

import numpy as np

from tensorplug.tensor import Array
from tensorplug_cpu.task import Operand

SOURCES = 5
NO_TYPE = -1
"""What an absent source has in place of a type."""

OPERAND = np.dtype(
    [("data", "u8"), ("ne", "i8", 4), ("nb", "i8", 4), ("type", "i4"), ("reserved", "i4")]
)
"""Sizes and byte strides, fastest dimension first, as in ggml."""
NODE = np.dtype(
    [
        ("op", "i4"),
        ("flags", "i4"),  # of the node's place in the program, set by the library
        ("f", "f4", 8),  # parameters, by op
        ("i", "i4", 8),
        ("out", OPERAND),
        ("src", OPERAND, SOURCES),
    ]
)


class Code(IntEnum):
    """What a node computes; a kernel for each stands in `cpp/kernels.cpp`, in the same order."""

    ADD = 0
    SUB = 1
    MUL = 2
    DIV = 3
    SCALE = 4
    RMS_NORM = 5
    SOFT_MAX = 6
    ROPE_TABLE = 7
    ROPE = 8
    GLU = 9
    GET_ROWS = 10
    SET_ROWS = 11
    COPY = 12
    MUL_MAT = 13
    ATTENTION = 14


class Activation(IntEnum):
    """The functions of gated units."""

    RELU = 0
    GELU = 1
    SILU = 2
    GELU_QUICK = 3


class Ending(IntEnum):
    """How a run ended."""

    DONE = 0
    ABORTED = 1
    BAD_ROW = 2


def address(array: Array) -> int:
    """Where the first element of `array` lies."""
    start: int = array.__array_interface__["data"][0]
    return start


def write_operand(record: Array, operand: Operand, row: int) -> None:
    """Describe `operand`, whose rows have `row` elements, in a record of type OPERAND.

    The last stride of block types is what an element takes at most, for ranges of memory.
    """
    array, dtype = operand.array, operand.dtype
    nb = array.strides[::-1]
    if dtype.is_block:
        nb = (-(-dtype.size // dtype.block), *nb[1:])
    record["data"] = address(array)
    record["ne"] = (row, *array.shape[-2::-1])
    record["nb"] = nb
    record["type"] = dtype.id
