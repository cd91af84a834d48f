"""`Metadata`: the key-value pairs of a GGUF file; arrays are decoded at each access."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorplug.errors import Closed
from tensorplug.gguf.cursor import CONVERT_AGAIN, UPDATE, Cursor, quote
from tensorplug.gguf.strings import Bytes, decode_strings

MIN_ENTRY_SIZE = 13
"""Bytes of the smallest entry: an empty key with its length, a type, one byte."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number type; `code` is its format character, the same in `struct` and NumPy."""

    name: str
    code: str

    @property
    def storage(self) -> "np.dtype[Any]":
        return np.dtype("<" + self.code)


BOOL_ID, STRING_ID, ARRAY_ID = 7, 8, 9
SCALARS = {
    0: Scalar("uint8", "B"),
    1: Scalar("int8", "b"),
    2: Scalar("uint16", "H"),
    3: Scalar("int16", "h"),
    4: Scalar("uint32", "I"),
    5: Scalar("int32", "i"),
    6: Scalar("float32", "f"),
    BOOL_ID: Scalar("bool", "?"),
    10: Scalar("uint64", "Q"),
    11: Scalar("int64", "q"),
    12: Scalar("float64", "d"),
}
"""The number types by their ids in the format."""


@dataclass(frozen=True, slots=True)
class StringArray:
    """An array of `count` strings in the bytes `start` to `end` of the file."""

    start: int
    end: int
    count: int

    def decode(self, memory: Bytes) -> list[str]:
        return decode_strings(memory, self.start, self.end, self.count)


@dataclass(frozen=True, slots=True)
class NumberArray:
    """An array of `count` numbers of one type, from byte `start` of the file."""

    start: int
    count: int
    type: Scalar

    def decode(self, memory: Bytes) -> npt.NDArray[Any]:
        storage = self.type.storage
        raw = memory[self.start : self.start + self.count * storage.itemsize]
        # A copy, because arrays may be unaligned and should not keep the file mapped. An array
        # over a bytes object is read-only.
        return np.frombuffer(raw.tobytes(), storage)


Stored = int | float | bool | str | StringArray | NumberArray | list[str] | npt.NDArray[Any]
"""A value, or where an array lies in the file."""


class Metadata(Mapping[str, object]):
    """Key-value pairs of a model, named as in GGUF files; read-only, in the order of the file.

    Values are int, float, bool, str, list[str] or a read-only NumPy array that is a copy. An array
    is decoded at every access (262,144 strings: 80 ms), so callers should keep the result. Strings
    with invalid UTF-8 contain surrogates: `text.encode("utf-8", "surrogateescape")` gives the bytes
    of the file. After the file is closed, arrays raise Closed; other values stay readable.
    """

    def __init__(self, stored: Mapping[str, Stored], memory: Bytes | None, path: str) -> None:
        """`memory` is the file; None where `stored` holds the arrays themselves."""
        self._stored = stored
        self._memory = memory
        self._path = path

    def __getitem__(self, key: str) -> object:
        stored = self._stored[key]
        if not isinstance(stored, StringArray | NumberArray):
            return stored
        if self._memory is None:
            raise Closed(
                f"{self._path}: metadata {quote(key)} is an array, and the file is closed; read "
                "arrays before you close it"
            )
        return stored.decode(self._memory)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, key: object) -> bool:
        # The default of Mapping would call __getitem__, which decodes an array.
        return key in self._stored

    def __repr__(self) -> str:
        return f"<Metadata {self._path}, {len(self)} entries>"

    def describe(self, key: str) -> str:
        """Describe the value of `key` in a few words, without decoding an array."""
        stored = self._stored[key]
        if isinstance(stored, StringArray):
            return f"an array of {stored.count} strings"
        if isinstance(stored, NumberArray):
            return f"an array of {stored.count} {stored.type.name}"
        if isinstance(stored, list):
            return f"an array of {len(stored)} strings"
        if isinstance(stored, np.ndarray):
            return f"an array of {stored.size} {stored.dtype.name}"
        return quote(stored)

    def close(self) -> None:
        """Release the file: arrays raise Closed from now on."""
        self._memory = None


def read_metadata(cursor: Cursor, count: int) -> Metadata:
    """Read `count` key-value pairs at the cursor. Raises FormatError."""
    stored: dict[str, Stored] = {}
    for index in range(count):
        key = cursor.name(f"the key of metadata entry {index}")
        if key in stored:
            raise cursor.error(f"metadata {quote(key)} is there twice", CONVERT_AGAIN)
        stored[key] = _read_value(cursor, f"metadata {quote(key)}")
    return Metadata(stored, cursor.memory, cursor.path)


def _read_value(cursor: Cursor, what: str) -> Stored:
    kind = cursor.u32(f"the type of {what}")
    if kind == STRING_ID:
        return cursor.string(what)
    if kind == ARRAY_ID:
        return _read_array(cursor, what)
    return _read_scalar(cursor, _scalar(cursor, kind, what), what)


def _read_scalar(cursor: Cursor, kind: Scalar, what: str) -> int | float | bool:
    raw = cursor.take(kind.storage.itemsize, what)
    if kind is SCALARS[BOOL_ID] and raw[0] > 1:
        raise cursor.error(f"{what} is a bool of value {raw[0]}, and bools are 0 or 1")
    value: int | float | bool = struct.unpack("<" + kind.code, raw)[0]
    return value


def _read_array(cursor: Cursor, what: str) -> StringArray | NumberArray:
    kind = cursor.u32(f"the element type of {what}")
    count = cursor.u64(f"the length of {what}")
    if kind == ARRAY_ID:
        raise cursor.error(f"{what} is an array of arrays, which is not supported", CONVERT_AGAIN)
    if kind == STRING_ID:
        start = cursor.skip_strings(count, what)
        return StringArray(start, cursor.offset, count)
    scalar = _scalar(cursor, kind, what)
    start = cursor.skip(count * scalar.storage.itemsize, what)
    if kind == BOOL_ID and cursor.memory[start : cursor.offset].max(initial=0) > 1:
        raise cursor.error(f"{what} holds bools that are neither 0 nor 1")
    return NumberArray(start, count, scalar)


def _scalar(cursor: Cursor, kind: int, what: str) -> Scalar:
    if kind not in SCALARS:
        raise cursor.error(f"{what} is of the unknown type {kind}", UPDATE)
    return SCALARS[kind]
