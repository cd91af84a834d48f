"""The program of a plan as the library reads it: its structures and numbers.

This is the one place for what Python and C++ share: `headers` writes `cpp/tables.h` from it.
"""

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.operand import Operand

SOURCES = 6
FLOATS = 8
INTEGERS = 16
PANEL_ROWS = 16
FEW_TILED = 24
"""Rows of x up to which blocks meet bytes at the level `amx`, because panels of bf16 fill slowly.

On one thread of a Xeon, 2048 x 2048, q4_K took 0.49 ms with tiles and 0.42 in bytes with 16 rows,
0.79 and 1.15 with 64.
"""
FEW_TILED_PANELS = 12
"""The same where blocks lie in panels, from which those of bf16 are filled while others multiply.

On a Xeon, SmolLM2 (q4_1) read 14 to 24 tokens in 0.84 to 0.95 of the time with one thread and in
0.90 to 1.0 with two; 10 tokens took 1.06 and 1.14 of it.
"""
NO_TYPE = -1
"""What an absent source has in place of a type."""

OPERAND = np.dtype(
    [("data", "u8"), ("ne", "i8", 4), ("nb", "i8", 4), ("type", "i4"), ("layout", "i4")]
)
"""Sizes and byte strides, fastest dimension first, as in ggml."""
NODE = np.dtype(
    [
        ("op", "i4"),
        ("flags", "i4"),  # of the node's place in the program, set by the library
        ("f", "f4", FLOATS),  # parameters, by op
        ("i", "i4", INTEGERS),
        ("out", OPERAND),
        ("also", OPERAND),  # a second result
        ("src", OPERAND, SOURCES),
    ]
)


class Code(IntEnum):
    """What a node computes; a kernel for each stands in `cpp/kernels.cpp`, in the same order."""

    MAP = 0
    JOIN = 1
    NORM = 2
    REDUCE = 3
    SOFT_MAX = 4
    ROPE_TABLE = 5
    ROPE = 6
    GET_ROWS = 7
    SET_ROWS = 8
    ADD_ROWS = 9
    COPY = 10
    REPEAT = 11
    MASK = 12
    ORDER = 13
    IM2COL = 14
    COL2IM = 15
    CONV_DW = 16
    POOL = 17
    MUL_MAT = 18
    MUL_MAT_ID = 19
    MATVEC = 20
    ATTENTION = 21


class Layout(IntEnum):
    """How the rows of an operand lie in memory."""

    IN_ROWS = 0
    """One behind the other, as tensors do."""
    IN_PANELS = 1
    """Sixteen of them side by side; see `cpp/panels.h`."""


class Map(IntEnum):
    """Functions of one element; `MAPPINGS` of `cpp/functions.h` has them in the same order."""

    SQR = 0
    SQRT = 1
    LOG = 2
    SIN = 3
    COS = 4
    ABS = 5
    SGN = 6
    NEG = 7
    STEP = 8
    TANH = 9
    ELU = 10
    RELU = 11
    SIGMOID = 12
    GELU = 13
    GELU_QUICK = 14
    GELU_ERF = 15
    SILU = 16
    HARDSWISH = 17
    HARDSIGMOID = 18
    EXP = 19
    EXPM1 = 20
    SOFTPLUS = 21
    FLOOR = 22
    CEIL = 23
    ROUND = 24
    TRUNC = 25
    XIELU = 26
    SCALE = 27
    CLAMP = 28
    LEAKY_RELU = 29
    FILL = 30


class Join(IntEnum):
    """Functions of an element of each of two tensors, as `Map`."""

    ADD = 0
    SUB = 1
    MUL = 2
    DIV = 3
    REGLU = 4
    GEGLU = 5
    SWIGLU = 6
    GEGLU_ERF = 7
    GEGLU_QUICK = 8
    SWIGLU_OAI = 9


class Norm(IntEnum):
    """What rows are divided by."""

    RMS = 0
    CENTRED = 1
    LENGTH = 2


class Reduction(IntEnum):
    """What becomes of a row."""

    SUM = 0
    MEAN = 1
    ARGMAX = 2
    RUNNING_SUM = 3


class Ending(IntEnum):
    """How a run ended."""

    DONE = 0
    ABORTED = 1
    BAD_ROW = 2


def address(array: Array) -> int:
    """Where the first element of `array` lies."""
    start: int = array.__array_interface__["data"][0]
    return start


class PanelOperand(Operand):
    """A matrix whose rows lie in panels; `array` has the sizes and strides of its rows."""


_OPERAND = struct.Struct("=Q4q4q2i")
_HEAD = struct.Struct("=2i")
_fields: Mapping[str, tuple[Any, ...]] = NODE.fields or {}
WORD = 8
"""Bytes of an address; each in a NODE lies at a multiple of them."""
ADDRESSES = tuple(
    start // WORD
    for start in (
        _fields["out"][1],
        _fields["also"][1],
        *(_fields["src"][1] + i * OPERAND.itemsize for i in range(SOURCES)),
    )
)
"""Where the addresses of `out`, `also` and the sources lie in a NODE, in words."""
_ABSENT = _OPERAND.pack(0, *[0] * 8, NO_TYPE, 0)


def pack_operand(operand: Operand | None, row: int = 0) -> bytes:
    """`operand`, whose rows have `row` elements, as an OPERAND.

    The last stride of block types is what an element takes at most, for ranges of memory.
    """
    if operand is None:
        return _ABSENT
    array, dtype = operand.array, operand.dtype
    nb = array.strides[::-1]
    if dtype.is_block:
        nb = (-(-dtype.size // dtype.block), *nb[1:])
    layout = Layout.IN_PANELS if isinstance(operand, PanelOperand) else Layout.IN_ROWS
    return _OPERAND.pack(address(array), row, *array.shape[-2::-1], *nb, dtype.id, layout)


def pack_node(
    code: Code, floats: Sequence[float], integers: Sequence[int], operands: Sequence[bytes]
) -> bytes:
    """A NODE of an op with its parameters; `operands` are `out`, `also` and the sources.

    Bytes are made at once: a plan has hundreds of records, and NumPy takes a microsecond for each
    field of one.
    """
    parameters = np.array(floats, np.float32).tobytes() if floats else b""
    head = _HEAD.pack(code, 0), parameters.ljust(4 * FLOATS, b"\0")
    numbers = struct.pack(f"={len(integers)}i", *integers).ljust(4 * INTEGERS, b"\0")
    absent = [_ABSENT] * (2 + SOURCES - len(operands))
    return b"".join((*head, numbers, *operands, *absent))
