"""`open_gguf` and `GGUFFile`: a checked, memory-mapped GGUF file."""

import mmap
import os
import stat
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from tensorplug.errors import Closed, FormatError
from tensorplug.gguf.cursor import CONVERT_AGAIN, UPDATE, Cursor, quote
from tensorplug.gguf.metadata import MIN_ENTRY_SIZE, Metadata, read_metadata
from tensorplug.gguf.strings import Bytes
from tensorplug.gguf.tensors import MIN_INFO_SIZE, GGUFTensor, read_tensors

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


class GGUFFile:
    """An open GGUF file, made by `open_gguf`. Read-only and thread-safe.

    Arrays from `memory` and `tensor_bytes` stay valid after `close()`: the file is unmapped when
    the last of them is garbage collected. Until then, the file must not be shortened: reading
    mapped bytes beyond the new end kills the process (SIGBUS). `read_tensor` returns a copy, and
    raises FormatError for a shortened file.
    """

    def __init__(self, memory: Bytes, path: Path, source: int | None = None) -> None:
        """Parse the file in `memory`, a read-only uint8 array. Raises FormatError.

        `source` is a descriptor of the same file. This object owns it and closes it.
        """
        self._source = source
        self._end = weakref.finalize(self, os.close, source) if source is not None else None
        cursor = Cursor(memory, str(path))
        header = _read_header(cursor)
        self.path = path
        self.version = header.version
        self.metadata: Metadata = read_metadata(cursor, header.entries)
        """Key-value pairs; an array is decoded at each access."""
        self.alignment = _alignment(cursor, self.metadata)
        """Alignment of tensor data in bytes."""
        self.tensors = read_tensors(cursor, header.tensors, self.alignment)
        """Tensors by name, in file order."""
        self._memory: Bytes | None = memory

    @property
    def memory(self) -> Bytes:
        """The bytes of the whole file, a read-only uint8 array. Raises Closed."""
        if self._memory is None:
            raise Closed(f"{self.path}: is closed; open it again")
        return self._memory

    def tensor_bytes(self, name: str) -> Bytes:
        """Return the stored bytes of a tensor, read-only uint8, without a copy.

        Raises FormatError if there is no tensor `name` or the file was shortened, and Closed.
        """
        tensor = self._tensor(name)
        self.check_size()
        return self.memory[tensor.offset : tensor.end]

    def read_tensor(self, name: str, start: int = 0, size: int | None = None) -> Bytes:
        """Return a copy of `size` stored bytes of a tensor from `start`, by default all of them.

        Raises FormatError if there is no tensor `name` or the file was shortened, and Closed.
        """
        tensor = self._tensor(name)
        size = tensor.nbytes - start if size is None else size
        first = tensor.offset + start
        if self._source is None or not hasattr(os, "pread"):
            self.check_size()
            return self.memory[first : first + size].copy()
        out = np.empty(size, np.uint8)
        done = 0
        while done < size:
            got = os.preadv(self._source, [out[done:].data], first + done)
            if not got:
                raise self._shortened()
            done += got
        return out

    def check_size(self) -> None:
        """Raise FormatError if the file was shortened since it was opened."""
        if self._source is None:
            return
        if os.fstat(self._source).st_size < self.memory.size:
            raise self._shortened()

    def _tensor(self, name: str) -> GGUFTensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise FormatError(
                f"{self.path}: there is no tensor {quote(name)} among {len(self.tensors)}; the "
                "model is incomplete or of another architecture: use another file"
            )
        return tensor

    def _shortened(self) -> FormatError:
        return FormatError(
            f"{self.path}: was shortened while it was read: it had {self.memory.size} bytes; fetch "
            "it again, and wait until it is complete"
        )

    def release(self, offset: int, size: int) -> None:
        """Tell the operating system to free the pages of a part of the mapping, in bytes.

        The bytes stay readable; the next access loads them from the page cache or from disk.
        """
        mapped = getattr(self.memory.base, "obj", None)  # NumPy keeps a memoryview of the mmap
        if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
            return  # not a mapped file, or a system without madvise
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        last = min(offset + size, len(mapped)) // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            mapped.madvise(mmap.MADV_DONTNEED, first, last - first)

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

    @property
    def closed(self) -> bool:
        """True after `close()`."""
        return self._memory is None

    def close(self) -> None:
        """Release the file. Tensor records and metadata except arrays stay readable. Idempotent."""
        # The mmap is not closed explicitly: `mmap.close()` fails while arrays refer to it. It is
        # unmapped with the last of them.
        self._memory = None
        self.metadata.close()
        self._source = None
        if self._end is not None:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

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
    return GGUFFile(*_map(Path(path)))


def _map(path: Path) -> tuple[Bytes, Path, int]:
    """Map a file: return its bytes, its path and a descriptor."""
    try:
        info = path.stat()
        # Checked before opening, because opening a pipe blocks until there is a writer.
        if not stat.S_ISREG(info.st_mode):
            what = "a directory" if stat.S_ISDIR(info.st_mode) else "not a regular file"
            raise FormatError(f"{path}: is {what}; give the path of a GGUF file")
        if not info.st_size:
            raise FormatError(f"{path}: is empty; fetch it again")
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            source = os.dup(file.fileno())
    except FormatError:
        raise
    except (
        OSError,
        ValueError,
    ) as error:  # ValueError: a path with a NUL, a file emptied meanwhile
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"{path}: {reason}; give the path of a readable GGUF file") from error
    return np.frombuffer(mapped, np.uint8), path, source


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
