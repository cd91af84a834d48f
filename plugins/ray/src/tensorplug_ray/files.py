"""Files of a node that should be the same as those of the driver."""

import os
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tensorplug.device import Array, FileRange
from tensorplug.errors import FormatError

PIECE = 1 << 20
"""Bytes that are read at once to be hashed."""


class Files:
    """Reads ranges of files, after comparing the files with what the driver says of its own."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int, int], str] = {}

    def read(self, path: Path, wanted: FileRange, size: int) -> Array:
        """The bytes of a range, which must be `size`. Raises FormatError for another file."""
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            self._check("size", path, str(wanted.file_size), str(found.st_size))
            if wanted.size != size or not 0 <= wanted.offset <= found.st_size - size:
                raise FormatError(
                    f"{path}: {wanted.size} bytes from {wanted.offset} are not a tensor of {size} "
                    f"bytes in {found.st_size}"
                )
            if not 0 <= wanted.head_size <= found.st_size:
                raise FormatError(f"{path}: has no table of {wanted.head_size} bytes")
            key = (str(path), found.st_size, found.st_mtime_ns, wanted.head_size)
            if key not in self._known:
                self._known[key] = _hash_of(file, wanted.head_size)
            self._check("table", path, wanted.head, self._known[key])
            data = np.fromfile(file, np.uint8, size, offset=wanted.offset - file.tell())
        ends = bytes(data[: wanted.END]) + bytes(data[-wanted.END :])
        self._check("data", path, wanted.ends, sha256(ends).hexdigest())
        return data

    def _check(self, what: str, path: Path, wanted: str, found: str) -> None:
        if wanted != found:
            raise FormatError(
                f"{path} on {os.uname().nodename} is not the driver's file: its {what} differs; "
                "copy the driver's there, or remove this one"
            )


def _hash_of(file: BinaryIO, size: int) -> str:
    """The SHA-256 of the next `size` bytes, read in pieces."""
    found = sha256()
    while size and (piece := file.read(min(size, PIECE))):
        found.update(piece)
        size -= len(piece)
    return found.hexdigest()
