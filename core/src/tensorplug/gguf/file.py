"""`open_gguf` and `GGUFFile`: a checked, memory-mapped GGUF file."""

import os
from dataclasses import dataclass
from pathlib import Path

from tensorplug.errors import FormatError
from tensorplug.gguf.cursor import CONVERT_AGAIN, UPDATE, BeginningTooShort, Cursor, quote
from tensorplug.gguf.metadata import MIN_ENTRY_SIZE, Metadata, read_metadata
from tensorplug.gguf.modelfile import ModelFile
from tensorplug.gguf.strings import Bytes
from tensorplug.gguf.tensorfile import map_file
from tensorplug.gguf.tensors import MIN_INFO_SIZE, read_tensors

MAGIC = b"GGUF"
HEADER_SIZE = 24
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"

LOOKALIKES = {
    b"version https://git-lfs": ("is a Git LFS pointer", "fetch the model with git lfs pull"),
    b"lmgg": ("is in the GGML format, which came before GGUF", CONVERT_AGAIN),
    b"fmgg": ("is in the GGMF format, which came before GGUF", CONVERT_AGAIN),
    b"tjgg": ("is in the GGJT format, which came before GGUF", CONVERT_AGAIN),
}
"""First bytes of files that are often mistaken for GGUF, with a description and the remedy."""


class GGUFFile(ModelFile):
    """An open GGUF file, made by `open_gguf`."""

    def __init__(
        self, memory: Bytes, path: Path, source: int | None = None, *, size: int | None = None
    ) -> None:
        """Parse the file in `memory`, a read-only uint8 array. Raises FormatError.

        `source` is a descriptor of the same file. This object owns it and closes it. `size` is
        the size of the file where `memory` holds only its beginning, see `read_beginning`.
        """
        super().__init__(memory, path, source)
        cursor = Cursor(memory, str(path), size)
        header = _read_header(cursor)
        self.version = header.version
        self.metadata = read_metadata(cursor, header.entries)
        self.alignment = _alignment(cursor, self.metadata)
        """Alignment of tensor data in bytes."""
        self.tensors = read_tensors(cursor, header.tensors, self.alignment)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return (
            f"<GGUFFile {self.path}, {len(self.metadata)} metadata entries, {len(self.tensors)} "
            f"tensors, {state}>"
        )


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open and check a GGUF file. Raises FormatError, also if the file cannot be read.

    Everything except the tensors' data is checked. A size in the file is compared with the file's
    size before anything of that size is allocated.
    """
    return GGUFFile(*map_file(Path(path), "GGUF"))


def read_beginning(memory: Bytes, path: Path, size: int) -> GGUFFile | None:
    """Parse metadata and tensor records of a file of `size` bytes from its first bytes.

    Returns None where more bytes are needed. The tensors' data is not there: do not read it.
    Raises FormatError, as `open_gguf` would for the whole file.
    """
    try:
        return GGUFFile(memory, path, size=size)
    except BeginningTooShort:
        return None


@dataclass(frozen=True, slots=True)
class _Header:
    version: int
    tensors: int
    entries: int


def _read_header(cursor: Cursor) -> _Header:
    begin = cursor.memory[:HEADER_SIZE].tobytes()
    if not begin.startswith(MAGIC[: len(begin)]):
        raise _not_gguf(cursor, begin)
    cursor.check(HEADER_SIZE, "the header")
    cursor.skip(len(MAGIC), "the magic")
    version = cursor.u32("the version")
    if version not in VERSIONS:
        raise _wrong_version(cursor, version)
    header = _Header(version, cursor.u64("the tensor count"), cursor.u64("the metadata count"))
    needed = header.tensors * MIN_INFO_SIZE + header.entries * MIN_ENTRY_SIZE
    if needed > cursor.left:
        raise cursor.error(
            f"the header counts {header.tensors} tensors and {header.entries} metadata entries, "
            f"which need at least {needed} bytes, and {cursor.left} are left"
        )
    return header


def _not_gguf(cursor: Cursor, begin: bytes) -> FormatError:
    for magic, (what, remedy) in LOOKALIKES.items():
        if begin.startswith(magic):
            return cursor.error(what, remedy)
    return cursor.error(
        f"is not a GGUF file: it begins with {quote(begin[:4])}, not with {MAGIC!r}",
        "give the path of a GGUF file",
    )


def _wrong_version(cursor: Cursor, version: int) -> FormatError:
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in VERSIONS:
        return cursor.error(
            f"is a big-endian file of version {swapped}, and only little-endian files are read",
            "convert its byte order with gguf-convert-endian",
        )
    if version == 1:
        return cursor.error("is of version 1, and versions 2 and 3 are read", CONVERT_AGAIN)
    return cursor.error(
        f"is of version {version}, and versions 2 and 3 are read",
        UPDATE,
    )


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    value = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    if type(value) is not int:
        raise cursor.error(
            f"metadata {ALIGNMENT_KEY!r} is {metadata.describe(ALIGNMENT_KEY)}, and an integer is "
            "needed",
            CONVERT_AGAIN,
        )
    if value < 1 or value & (value - 1):
        raise cursor.error(
            f"metadata {ALIGNMENT_KEY!r} is {value}, and a power of two is needed", CONVERT_AGAIN
        )
    return value
