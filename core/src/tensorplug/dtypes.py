"""Element and block types: one table of names, ids and sizes.

Ids are the type numbers of the GGUF file format. A block type stores `block` elements in `size`
bytes; rows (`ne[0]`) of block types hold whole blocks.
"""

import difflib
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorplug.errors import DTypeError, ShapeError


@dataclass(frozen=True, slots=True)
class DType:
    """One element or block type.

    `size` is bytes per block of `block` elements. `numpy` is the name of the NumPy type that stores
    one element, or None for block types and bf16, which NumPy cannot compute with.

    >>> tp.Q4_0.block, tp.Q4_0.size
    (32, 18)
    """

    name: str
    id: int
    block: int
    size: int
    numpy: str | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the name: a type is compared by identity, in another process too."""
        return dtype, (self.name,)

    @property
    def is_block(self) -> bool:
        """True for block types, which store several elements in one unit."""
        return self.block > 1

    @property
    def is_float(self) -> bool:
        """True for f16, bf16, f32 and f64; False for block types and integers."""
        return self in FLOATS

    @property
    def is_integer(self) -> bool:
        """True for i8, i16, i32 and i64."""
        return self in INTEGERS

    @property
    def storage(self) -> "np.dtype[np.generic]":
        """The NumPy type of stored data: uint16 for bf16, uint8 for block types, else `numpy`."""
        return np.dtype(self.numpy or ("uint8" if self.is_block else "uint16"))

    def row_size(self, elements: int) -> int:
        """Return the bytes of a row of `elements` elements.

        Raises ShapeError if `elements` is not a multiple of the block length.
        """
        blocks, rest = divmod(elements, self.block)
        if rest:
            raise ShapeError(
                f"{self.name}: a row of {elements} elements is not a multiple of the block length "
                f"{self.block}; pad the row"
            )
        return blocks * self.size

    def __repr__(self) -> str:
        return self.name


F32 = DType("f32", 0, 1, 4, "float32")
F16 = DType("f16", 1, 1, 2, "float16")
Q4_0 = DType("q4_0", 2, 32, 18)
Q4_1 = DType("q4_1", 3, 32, 20)
Q5_0 = DType("q5_0", 6, 32, 22)
Q5_1 = DType("q5_1", 7, 32, 24)
Q8_0 = DType("q8_0", 8, 32, 34)
Q8_1 = DType("q8_1", 9, 32, 36)
Q2_K = DType("q2_K", 10, 256, 84)
Q3_K = DType("q3_K", 11, 256, 110)
Q4_K = DType("q4_K", 12, 256, 144)
Q5_K = DType("q5_K", 13, 256, 176)
Q6_K = DType("q6_K", 14, 256, 210)
Q8_K = DType("q8_K", 15, 256, 292)
IQ2_XXS = DType("iq2_xxs", 16, 256, 66)
IQ2_XS = DType("iq2_xs", 17, 256, 74)
IQ3_XXS = DType("iq3_xxs", 18, 256, 98)
IQ1_S = DType("iq1_s", 19, 256, 50)
IQ4_NL = DType("iq4_nl", 20, 32, 18)
IQ3_S = DType("iq3_s", 21, 256, 110)
IQ2_S = DType("iq2_s", 22, 256, 82)
IQ4_XS = DType("iq4_xs", 23, 256, 136)
I8 = DType("i8", 24, 1, 1, "int8")
I16 = DType("i16", 25, 1, 2, "int16")
I32 = DType("i32", 26, 1, 4, "int32")
I64 = DType("i64", 27, 1, 8, "int64")
F64 = DType("f64", 28, 1, 8, "float64")
IQ1_M = DType("iq1_m", 29, 256, 56)
BF16 = DType("bf16", 30, 1, 2)
TQ1_0 = DType("tq1_0", 34, 256, 54)
TQ2_0 = DType("tq2_0", 35, 256, 66)
MXFP4 = DType("mxfp4", 39, 32, 17)
NVFP4 = DType("nvfp4", 40, 64, 36)
Q1_0 = DType("q1_0", 41, 128, 18)
Q2_0 = DType("q2_0", 42, 64, 18)

DTYPES: tuple[DType, ...] = tuple(v for v in list(globals().values()) if isinstance(v, DType))
"""All types, ordered by id."""

FLOATS = frozenset({F32, F16, BF16, F64})
INTEGERS = frozenset({I8, I16, I32, I64})
REMOVED_IDS = frozenset({4, 5, 31, 32, 33, 36, 37, 38})
"""Ids of types that were removed from GGUF: files with them are rejected."""

DTypeLike = DType | str | int | np.dtype[Any] | type
"""What `dtype()` turns into a type: `F16`, `"f16"`, `"float16"`, `np.float16`, a GGUF type id."""

_BY_NAME = {t.name.lower(): t for t in DTYPES}
_BY_ID = {t.id: t for t in DTYPES}
_BY_NUMPY = {np.dtype(t.numpy): t for t in DTYPES if t.numpy}
_BY_NUMPY_NAME = {t.numpy: t for t in DTYPES if t.numpy}


def dtype(what: DTypeLike) -> DType:
    """Return the type of a name, ours or NumPy's (any case), a GGUF type id or a NumPy type.

    Raises DTypeError.

    >>> tp.dtype("Q8_0") is tp.Q8_0 and tp.dtype(np.float16) is tp.F16
    True
    """
    if isinstance(what, DType):
        return what
    if isinstance(what, int | np.integer) and not isinstance(what, bool):
        return _by_id(int(what))
    if isinstance(what, str):
        return _by_name(what)
    if not isinstance(what, np.dtype | type):
        raise DTypeError(
            f"dtype: {what!r} is not a type; give a name, a GGUF type id or a NumPy type"
        )
    found = _BY_NUMPY.get(np.dtype(what))
    if found is None:
        raise DTypeError(
            f"dtype: NumPy type {np.dtype(what)} has no tensor type; use one of {_names(_BY_NUMPY)}"
        )
    return found


def _by_id(number: int) -> DType:
    if number in _BY_ID:
        return _BY_ID[number]
    if number in REMOVED_IDS:
        raise DTypeError(
            f"dtype: type id {number} was removed from the format; convert the file again"
        )
    raise DTypeError(f"dtype: unknown type id {number}; known ids are 0 to {max(_BY_ID)}")


def _by_name(name: str) -> DType:
    found = _BY_NAME.get(name.lower()) or _BY_NUMPY_NAME.get(name.lower())
    if found is not None:
        return found
    close = difflib.get_close_matches(name.lower(), _BY_NAME, n=1)
    hint = f"did you mean {_BY_NAME[close[0]].name}?" if close else f"known: {_names(_BY_NAME)}"
    raise DTypeError(f"dtype: unknown type {name!r}; {hint}")


def _names(table: "dict[np.dtype[np.generic], DType] | dict[str, DType]") -> str:
    return ", ".join(t.name for t in table.values())
