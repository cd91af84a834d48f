"""Tensors of a folder under their names in GGUF: as they are, or made when they are read."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tensorplug.blocks.rows import decode_rows
from tensorplug.dtypes import F32, DType
from tensorplug.errors import FormatError
from tensorplug.gguf import FileTensor, ModelFile, TensorFile
from tensorplug.gguf.cursor import quote
from tensorplug.gguf.strings import Bytes
from tensorplug.graph.tensor import Array

Order = npt.NDArray[np.int64]


class MadeFile(ModelFile):
    """A model of which some tensors are made when they are read. Override `part_of`."""

    def __init__(self, path: Path) -> None:
        """No one file holds all of it, so `memory` is empty."""
        super().__init__(np.empty(0, np.uint8), path)

    def tensor_bytes(self, name: str) -> Bytes:
        """The bytes of a tensor: a view, or a copy where they are made."""
        return self.part_of(name, 0, self.find(name).nbytes)

    def read_tensor(self, name: str, start: int = 0, size: int | None = None) -> Bytes:
        """A copy of `size` bytes from `start`, by default all of them."""
        size = self.find(name).nbytes - start if size is None else size
        return self.part_of(name, start, size).copy()


class Source(ABC):
    """Where the bytes of one tensor come from."""

    tensor: FileTensor
    """Its name in GGUF; the offset counts in `memory`."""

    @property
    def memory(self) -> Bytes | None:
        """The mapped file that holds the tensor as it is; None where its bytes are made."""
        return None

    @abstractmethod
    def part(self, start: int, size: int) -> Bytes:
        """Return `size` bytes from `start`; a view where they are mapped."""

    def release(self, start: int, size: int) -> None:  # noqa: B027 - most have no pages
        """Free the mapped pages of this part, where it has some of its own."""


class Stored(Source):
    """A tensor as its file has it."""

    def __init__(self, name: str, file: TensorFile, entry: FileTensor) -> None:
        self.tensor = FileTensor(
            name, entry.dtype, entry.ne, entry.rank, entry.offset, entry.nbytes
        )
        self._file, self._name = file, entry.name

    @property
    def memory(self) -> Bytes:
        """The mapped file."""
        return self._file.memory

    def part(self, start: int, size: int) -> Bytes:
        """Return a view of the mapped bytes."""
        return self._file.part_of(self._name, start, size)

    def release(self, start: int, size: int) -> None:
        """Free these pages."""
        self._file.release(self._name, start, size)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a stored tensor, in another order where `order` gives one."""

    file: TensorFile
    entry: FileTensor
    first: int
    count: int
    order: Order | None = None

    def rows(self, start: int, stop: int) -> Bytes:
        """The bytes of rows `start` to `stop` of these: uint8 [rows, bytes]."""
        table = self.file.tensor_bytes(self.entry.name).reshape(-1, row_size(self.entry))
        mine = table[self.first : self.first + self.count]
        return mine[start:stop] if self.order is None else mine[self.order[start:stop]]


class Rows(Source):
    """A matrix, or several, made of the rows of others."""

    def __init__(self, name: str, pieces: list[Piece], sizes: tuple[int, ...]) -> None:
        """`sizes` are the rows, in ggml order, and the number of matrices. Raises FormatError."""
        entry = pieces[0].entry
        for piece in pieces:
            if piece.entry.dtype is not entry.dtype or piece.entry.ne[0] != entry.ne[0]:
                raise FormatError(
                    f"{piece.file.path}: tensor {quote(piece.entry.name)} is not of the type and "
                    f"row length of {quote(entry.name)}, with which it makes {name}; convert the "
                    "model again"
                )
        self._pieces = pieces
        self._row_size = row_size(entry)
        ne = (entry.ne[0], *sizes)
        first, second, third, fourth = (*ne, 1, 1)[:4]
        nbytes = self._row_size * sum(piece.count for piece in pieces)
        self.tensor = FileTensor(
            name, entry.dtype, (first, second, third, fourth), len(ne), 0, nbytes
        )

    def part(self, start: int, size: int) -> Bytes:
        """Return a copy of the rows in which these bytes are."""
        begin, end = start // self._row_size, -(-(start + size) // self._row_size)
        found = []
        for piece in self._pieces:
            if begin < piece.count and end > 0:
                found.append(piece.rows(max(begin, 0), min(end, piece.count)))
            begin, end = begin - piece.count, end - piece.count
        whole = found[0] if len(found) == 1 else np.concatenate(found)
        skipped = start % self._row_size
        return np.ascontiguousarray(whole).reshape(-1)[skipped : skipped + size]


class Values(Source):
    """Numbers in f32, computed when they are read: vectors, and what the config says."""

    def __init__(
        self,
        name: str,
        file: TensorFile,
        entry: FileTensor,
        *,
        plus: float = 0.0,
        order: Order | None = None,
    ) -> None:
        """`plus` is added to all values; `order` is that of a vector."""
        self._file, self._entry, self._plus, self._order = file, entry, plus, order
        rank = 2 if entry.ne[1] > 1 else 1
        self.tensor = FileTensor(name, F32, entry.ne, rank, 0, 4 * math.prod(entry.ne))

    def part(self, start: int, size: int) -> Bytes:
        """Compute all of them."""
        values = decoded(self._file, self._entry).reshape(-1)
        if self._order is not None:
            values = values[self._order]
        return (values + np.float32(self._plus)).view(np.uint8)[start : start + size]


class Given(Source):
    """A vector in f32 that no file holds."""

    def __init__(self, name: str, values: Array) -> None:
        self._values = values.astype(np.float32)
        self.tensor = FileTensor(name, F32, (values.size, 1, 1, 1), 1, 0, 4 * values.size)

    def part(self, start: int, size: int) -> Bytes:
        """Return a view of the values."""
        return self._values.view(np.uint8)[start : start + size]


def row_size(entry: FileTensor) -> int:
    """Bytes of a row."""
    return entry.dtype.row_size(entry.ne[0])


def decoded(file: TensorFile, entry: FileTensor) -> Array:
    """All values of a tensor: f32 [rows, row length]."""
    raw = file.tensor_bytes(entry.name).reshape(-1, row_size(entry))
    return decode(entry.dtype, raw, entry.ne[0])


def decode(dtype: DType, raw: Bytes, length: int) -> Array:
    """Rows of `length` values in any type as f32."""
    values = np.empty((len(raw), length), np.float32)
    decode_rows(dtype, raw, values)
    return values


def neighbours(rows: int, heads: int) -> Order:
    """Rows of queries or keys so that those that turn together are neighbours.

    Hugging Face turns the first half of a head with the second; llama's files turn pairs.
    """
    halves = np.arange(rows).reshape(heads, 2, -1)
    return halves.transpose(0, 2, 1).reshape(-1)
