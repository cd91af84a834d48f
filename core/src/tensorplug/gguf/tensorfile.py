"""`TensorFile`: named tensors in a memory-mapped file, whatever the format of the file is."""

import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from tensorplug.device.buffer import FileRange
from tensorplug.device.lifetime import Resource
from tensorplug.dtypes import DType
from tensorplug.errors import Closed, FormatError
from tensorplug.gguf.cursor import quote
from tensorplug.gguf.strings import Bytes
from tensorplug.graph.tensor import Ne


@dataclass(frozen=True, slots=True)
class FileTensor:
    """One tensor of a file: `ne` in ggml order, `offset` in bytes from the start of the file."""

    name: str
    dtype: DType
    ne: Ne
    rank: int
    offset: int
    nbytes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes in NumPy's order."""
        return self.ne[: self.rank][::-1]

    @property
    def end(self) -> int:
        """Offset of the end of the data."""
        return self.offset + self.nbytes


class TensorFile(Resource):
    """An open file of tensors. Read-only and thread-safe. A reader of a format derives from it.

    Arrays from `memory` and `tensor_bytes` stay valid after `close()`: the file is unmapped when
    the last of them is garbage collected. Until then, the file must not be shortened: reading
    mapped bytes beyond the new end kills the process (SIGBUS). `read_tensor` returns a copy, and
    raises FormatError for a shortened file.
    """

    tensors: Mapping[str, FileTensor]
    """Tensors by name, in file order."""

    def __init__(self, memory: Bytes, path: Path, source: int | None = None) -> None:
        """`memory` is the whole file, read-only; `source` a descriptor, which this object owns."""
        super().__init__()
        self.path = path
        self._memory: Bytes | None = memory
        self._source = source
        self._head = ""

    @property
    def memory(self) -> Bytes:
        """The bytes of the whole file, a read-only uint8 array. Raises Closed."""
        if self._memory is None:
            raise Closed(f"{self.path}: is closed; open it again")
        return self._memory

    def called(self, name: str) -> str:
        """Return the name of a tensor in the files, for error texts, where a reader renames it."""
        return name

    def memory_of(self, name: str) -> Bytes | None:
        """Return the mapped bytes in which the offset of a tensor counts.

        None where the file does not hold the tensor as it is: its bytes are made when they are
        read. Raises Closed.
        """
        return self.memory

    def tensor_bytes(self, name: str) -> Bytes:
        """Return the stored bytes of a tensor, read-only uint8, without a copy.

        Raises FormatError if there is no tensor `name` or the file was shortened, and Closed.
        """
        tensor = self.find(name)
        self.check_size()
        return self.memory[tensor.offset : tensor.end]

    def part_of(self, name: str, start: int, size: int) -> Bytes:
        """Return `size` stored bytes of a tensor from `start`; a view where they are mapped.

        Raises as `tensor_bytes` does.
        """
        return self.tensor_bytes(name)[start : start + size]

    def read_tensor(self, name: str, start: int = 0, size: int | None = None) -> Bytes:
        """Return a copy of `size` stored bytes of a tensor from `start`, by default all of them.

        Raises FormatError if there is no tensor `name` or the file was shortened, and Closed.
        """
        tensor = self.find(name)
        size = tensor.nbytes - start if size is None else size
        if not 0 <= start <= start + size <= tensor.nbytes:
            raise FormatError(
                f"{self.path}: bytes {start} to {start + size} of tensor {quote(name)} were asked "
                f"for, and it has {tensor.nbytes}"
            )
        first = tensor.offset + start
        if self._source is None or not hasattr(os, "preadv"):
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

    def range_of(self, name: str) -> FileRange | None:
        """Where the bytes of a tensor are, for a machine with the same file. Raises FormatError.

        None where the file does not hold the tensor as it is.
        """
        tensor = self.find(name)
        head_size = min(t.offset for t in self.tensors.values())
        if not self._head:
            self._head = sha256(self.memory[:head_size].data).hexdigest()
        data, end = self.tensor_bytes(name), FileRange.END
        return FileRange(
            str(self.path.resolve()),
            tensor.offset,
            tensor.nbytes,
            self.memory.size,
            head_size,
            self._head,
            sha256(bytes(data[:end]) + bytes(data[-end:])).hexdigest(),
        )

    def check_size(self) -> None:
        """Raise FormatError if the file was shortened since it was opened."""
        if self._source is None:
            return
        if os.fstat(self._source).st_size < self.memory.size:
            raise self._shortened()

    def release(self, name: str | None = None, start: int = 0, size: int = 0) -> None:
        """Tell the operating system to free the mapped pages of `size` bytes of a tensor.

        Without a name those of the whole file. The bytes stay readable; the next access loads them
        from the page cache or from disk.
        """
        if name is None:
            release_pages(self.memory, 0, self.memory.size)
        else:
            release_pages(self.memory, self.find(name).offset + start, size)

    def find(self, name: str) -> FileTensor:
        """Return the record of a tensor. Raises FormatError if there is no tensor `name`."""
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

    def _close(self) -> None:
        # The mmap is not closed explicitly: `mmap.close()` fails while arrays refer to it. It is
        # unmapped with the last of them.
        self._memory = None
        self._abandon()

    def _abandon(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            os.close(source)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<{type(self).__name__} {self.path}, {len(self.tensors)} tensors, {state}>"


def release_pages(memory: Bytes, offset: int, size: int) -> None:
    """Free the whole pages between these bytes of a mapped file."""
    mapped = getattr(memory.base, "obj", None)  # NumPy keeps a memoryview of the mmap
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return  # not a mapped file, or a system without madvise
    first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    last = min(offset + size, len(mapped)) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


@dataclass(frozen=True, slots=True)
class FileSource:
    """Where the stored bytes of a tensor come from: a source for `Scheduler.add_sources`."""

    file: TensorFile
    name: str

    def __call__(self) -> Bytes:
        """The bytes. Raises FormatError, Closed."""
        return self.file.tensor_bytes(self.name)

    def range(self) -> FileRange | None:
        """Where they are in the file; None where the file has them in another form."""
        return self.file.range_of(self.name)


def map_file(path: Path, kind: str) -> tuple[Bytes, Path, int]:
    """Map a file: return its bytes, its path and a descriptor, the arguments of `TensorFile`.

    `kind` names the format in error texts: `GGUF`. Raises FormatError.
    """
    try:
        info = path.stat()
        # Checked before opening, because opening a pipe blocks until there is a writer.
        if not stat.S_ISREG(info.st_mode):
            what = "a directory" if stat.S_ISDIR(info.st_mode) else "not a regular file"
            raise FormatError(f"{path}: is {what}; give the path of a {kind} file")
        if not info.st_size:
            raise FormatError(f"{path}: is empty; fetch it again")
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            source = os.dup(file.fileno())
    except FormatError:
        raise
    except (OSError, ValueError) as error:
        # ValueError: a path with a NUL, or a file that was emptied meanwhile
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"{path}: {reason}; give the path of a readable {kind} file") from error
    return np.frombuffer(mapped, np.uint8), path, source
