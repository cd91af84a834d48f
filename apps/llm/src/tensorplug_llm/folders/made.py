"""Tensors of a folder under their names in GGUF: as they are, or made when they are read."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tensorplug.blocks.rows import decode_rows
from tensorplug.device import Array
from tensorplug.dtypes import F32, MXFP4, DType
from tensorplug.errors import FormatError
from tensorplug.gguf import FileTensor, ModelFile, TensorFile
from tensorplug.gguf.cursor import quote
from tensorplug.gguf.strings import Bytes

Order = npt.NDArray[np.int64]
Change = Callable[[Array], Array]


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
    """`count` rows of a stored tensor from `first` on, or those that `order` numbers."""

    file: TensorFile
    entry: FileTensor
    first: int
    count: int
    order: Order | None = None

    def rows(self, start: int, stop: int) -> Bytes:
        """The bytes of rows `start` to `stop` of these: uint8 [rows, bytes]."""
        table = self.file.tensor_bytes(self.entry.name).reshape(-1, row_size(self.entry))
        if self.order is not None:
            return table[self.order[start:stop]]
        return table[self.first : self.first + self.count][start:stop]


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
        change: Change | None = None,
        order: Order | None = None,
        ne: tuple[int, ...] = (),
    ) -> None:
        """`order` picks among all values, `change` computes with them; `ne` are the sizes then."""
        self._file, self._entry, self._change, self._order = file, entry, change, order
        sizes = ne or entry.ne[: 2 if entry.ne[1] > 1 else 1]
        self.tensor = _f32(name, sizes)

    def part(self, start: int, size: int) -> Bytes:
        """Compute all of them."""
        values = decoded(self._file, self._entry).reshape(-1)
        if self._order is not None:
            values = values[self._order]
        if self._change is not None:
            values = self._change(values)
        return np.ascontiguousarray(values, np.float32).view(np.uint8)[start : start + size]


class Columns(Source):
    """Matrices whose rows are columns of stored ones."""

    def __init__(self, name: str, file: TensorFile, entry: FileTensor, columns: slice) -> None:
        """`columns` of each matrix become rows."""
        self._file, self._entry, self._columns = file, entry, columns
        columns_of_one, length, count, _ = entry.ne
        self._rows = len(range(columns_of_one)[columns])
        self.tensor = FileTensor(
            name,
            entry.dtype,
            (length, self._rows, count, 1),
            3,
            0,
            entry.dtype.row_size(length) * self._rows * count,
        )

    def part(self, start: int, size: int) -> Bytes:
        """Return a copy of the rows in which these bytes are."""
        columns, length, count, _ = self._entry.ne
        kind = np.dtype(f"u{self._entry.dtype.row_size(1)}")
        stored = self._file.tensor_bytes(self._entry.name).view(kind)
        matrices = stored.reshape(count, length, columns)[:, :, self._columns]
        row = length * kind.itemsize
        begin, end = start // row, -(-(start + size) // row)
        out = np.empty((end - begin, length), kind)
        done = begin
        while done < end:
            number, first = divmod(done, self._rows)
            last = min(self._rows, first + end - done)
            out[done - begin : done - begin + last - first] = matrices[number, :, first:last].T
            done += last - first
        return out.view(np.uint8).reshape(-1)[start % row : start % row + size]


class Fours(Source):
    """Matrices in MXFP4 of stored blocks and scales, which are apart in Hugging Face's files.

    There a byte has two neighbours; in GGUF, elements that are half a block apart.
    """

    def __init__(self, name: str, blocks: Bytes, scales: Bytes, rows: slice) -> None:
        """`blocks` are uint8 [matrices, rows, blocks, 16]; `rows` of each matrix are meant."""
        self._blocks, self._scales = blocks[:, rows], scales[:, rows]
        count, wanted, each, _ = self._blocks.shape
        self._row_size = MXFP4.row_size(each * MXFP4.block)
        ne = (each * MXFP4.block, wanted, count, 1)
        self.tensor = FileTensor(name, MXFP4, ne, 3, 0, self._row_size * wanted * count)

    def part(self, start: int, size: int) -> Bytes:
        """Return a copy of the rows in which these bytes are."""
        count = self._blocks.shape[1]
        places = np.arange(start // self._row_size, -(-(start + size) // self._row_size))
        stored = self._blocks[places // count, places % count]
        out = np.empty((*stored.shape[:2], 17), np.uint8)
        out[..., 0] = self._scales[places // count, places % count]
        half = stored.shape[2] // 2
        first, last = stored[..., :half], stored[..., half:]
        out[..., 1::2] = first & 15 | last << 4
        out[..., 2::2] = first >> 4 | last & 0xF0
        skipped = start % self._row_size
        return out.reshape(-1)[skipped : skipped + size]


class Given(Source):
    """A vector in f32 that no file holds."""

    def __init__(self, name: str, values: Array) -> None:
        self._values = values.astype(np.float32)
        self.tensor = _f32(name, (values.size,))

    def part(self, start: int, size: int) -> Bytes:
        """Return a view of the values."""
        return self._values.view(np.uint8)[start : start + size]


def _f32(name: str, sizes: tuple[int, ...]) -> FileTensor:
    """A tensor of f32 that begins its own memory."""
    first, second, third, fourth = (*sizes, 1, 1, 1)[:4]
    ne = (first, second, third, fourth)
    return FileTensor(name, F32, ne, len(sizes), 0, 4 * math.prod(ne))


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
