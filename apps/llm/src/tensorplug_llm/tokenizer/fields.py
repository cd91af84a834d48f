"""Typed, checked reading of GGUF metadata."""

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tensorplug.errors import FormatError

Metadata = Mapping[str, object]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

REMEDY = "the model file is damaged or incomplete: fetch or convert it again"

Kind = TypeVar("Kind")


class Fields:
    """The metadata of one model file, read by kind. Every method raises FormatError."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; required when there is no default."""
        return self._scalar(key, str, "a string", default)

    def flag(self, key: str, *, default: bool) -> bool:
        return self._scalar(key, bool, "true or false", default)

    def with_flag(self, key: str, *, value: bool) -> "Fields":
        """The same metadata with another flag."""
        return Fields({**self._metadata, key: value})

    def token_id(self, key: str, size: int, default: int | None = None) -> int | None:
        """Return the id of a token, or the default where the vocabulary has that one."""
        if key not in self._metadata:
            return default if default is not None and default < size else None
        value = self._metadata[key]
        if not isinstance(value, int | np.integer) or isinstance(value, bool):
            raise _wrong(key, "a token id", value)
        if not 0 <= value < size:
            raise FormatError(
                f"{key}: {value} is not a token of a vocabulary of {size} tokens; {REMEDY}"
            )
        return int(value)

    def strings(self, key: str) -> list[str]:
        values = self._array(key)
        strings = values.tolist() if isinstance(values, np.ndarray) else values
        others = set(map(type, strings)) - {str}
        if others:
            raise FormatError(f"{key}: must hold strings, not {others.pop().__name__}; {REMEDY}")
        return list(strings)

    def floats(self, key: str, size: int) -> Floats:
        """Return finite numbers, one per token; zeros when the key is absent."""
        if key not in self._metadata:
            return np.zeros(size, np.float32)
        with np.errstate(over="ignore"):  # too large becomes infinite, and is refused below
            values = self._numbers(key, size, "iuf").astype(np.float32)
        if not np.isfinite(values).all():
            raise FormatError(f"{key}: holds numbers that are not finite; {REMEDY}")
        return values

    def ints(self, key: str, size: int, default: int) -> Ints:
        """Return integers, one per token; the default throughout when the key is absent."""
        if key not in self._metadata:
            return np.full(size, default, np.int32)
        return self._numbers(key, size, "iu").astype(np.int32)

    def octets(self, key: str) -> bytes:
        """Return an array of bytes; nothing when the key is absent."""
        if key not in self._metadata:
            return b""
        values = np.asarray(self._array(key))
        if values.ndim != 1 or values.dtype not in (np.uint8, np.int8):
            raise FormatError(f"{key}: must hold bytes, not {values.dtype.name}; {REMEDY}")
        return values.tobytes()

    def _scalar(self, key: str, kind: type[Kind], words: str, default: Kind | None) -> Kind:
        value = self._metadata.get(key, default)
        if value is None:
            raise _missing(key)
        if isinstance(value, np.bool_):
            value = bool(value)
        if not isinstance(value, kind):
            raise _wrong(key, words, value)
        return value

    def _array(self, key: str) -> "list[object] | npt.NDArray[np.generic]":
        value = self._metadata.get(key)
        if value is None:
            raise _missing(key)
        if isinstance(value, np.ndarray):
            return value
        if isinstance(value, list | tuple):
            return list(value)
        raise _wrong(key, "an array", value)

    def _numbers(self, key: str, size: int, kinds: str) -> "npt.NDArray[np.generic]":
        try:
            values = np.asarray(self._array(key))
        except (ValueError, OverflowError) as error:
            raise FormatError(f"{key}: must hold numbers ({error}); {REMEDY}") from error
        if values.ndim != 1 or (values.size and values.dtype.kind not in kinds):
            raise FormatError(
                f"{key}: must hold numbers, not {values.dtype.name} in {values.ndim} dimensions; "
                f"{REMEDY}"
            )
        if values.size != size:
            raise FormatError(
                f"{key}: has {values.size} entries for a vocabulary of {size} tokens; {REMEDY}"
            )
        return values


def _missing(key: str) -> FormatError:
    return FormatError(f"{key}: missing from the metadata; {REMEDY}")


def _wrong(key: str, words: str, value: object) -> FormatError:
    return FormatError(f"{key}: must be {words}, not {type(value).__name__}; {REMEDY}")
