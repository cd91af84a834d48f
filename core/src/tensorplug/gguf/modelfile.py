"""`ModelFile`: named tensors with metadata, whatever the format of the file is."""

from typing import Any, TypeVar

import numpy as np

from tensorplug.errors import FormatError
from tensorplug.gguf.cursor import CONVERT_AGAIN, quote
from tensorplug.gguf.metadata import Metadata
from tensorplug.gguf.tensorfile import TensorFile

KINDS: dict[type, str] = {
    int: "an integer",
    float: "a number",
    bool: "a bool",
    str: "a string",
    list: "an array of strings",
    np.ndarray: "an array of numbers",
}
"""The types that `require` accepts, in words for error texts."""

Kind = TypeVar("Kind")


class ModelFile(TensorFile):
    """A `TensorFile` with metadata, whose keys are those of GGUF files."""

    metadata: Metadata
    """Key-value pairs; an array of a GGUF file is decoded at each access."""

    def require(self, key: str, kind: type[Kind]) -> Kind:
        """Return the metadata value of `key`, of a type in KINDS; `float` accepts integers too.

        Raises FormatError if it is missing or of another type, Closed for arrays of closed files.
        """
        if key not in self.metadata:
            raise FormatError(
                f"{self.path}: metadata {quote(key)}, {KINDS[kind]}, is missing; the model is "
                f"incomplete: use another file, or {CONVERT_AGAIN}"
            )
        value: Any = self.metadata[key]
        if kind is float and type(value) is int:
            value = float(value)
        if isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
            return value
        raise FormatError(
            f"{self.path}: metadata {quote(key)} is {self.metadata.describe(key)}, and "
            f"{KINDS[kind]} is needed; use another file, or {CONVERT_AGAIN}"
        )

    def _close(self) -> None:
        super()._close()
        self.metadata.close()
