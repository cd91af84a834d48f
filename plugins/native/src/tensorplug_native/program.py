"""The program of a plan as the library reads it: the structures of `cpp/program.h` in NumPy."""

from enum import IntEnum

import numpy as np

from tensorplug.tensor import Array
from tensorplug_cpu.task import Operand

ABI = 1
SOURCES = 5
NO_TYPE = -1

OPERAND = np.dtype(
    [("data", "u8"), ("ne", "i8", 4), ("nb", "i8", 4), ("type", "i4"), ("reserved", "i4")]
)
NODE = np.dtype(
    [
        ("op", "i4"),
        ("flags", "i4"),
        ("f", "f4", 8),
        ("i", "i4", 8),
        ("out", OPERAND),
        ("src", OPERAND, SOURCES),
    ]
)


class Code(IntEnum):
    """What a node computes."""

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
