"""`Recipe`: how a tensor of a GGUF file is made of tensors that Hugging Face stores otherwise."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorplug.device import Array
from tensorplug.errors import FormatError
from tensorplug.gguf import FileTensor
from tensorplug.gguf.cursor import FETCH_AGAIN, quote
from tensorplug_llm.folders.made import (
    Columns,
    Fours,
    Order,
    Piece,
    Rows,
    Source,
    Values,
)
from tensorplug_llm.folders.safetensors import SafetensorsFile

CONTRADICT = "config.json and the tensors contradict each other: fetch the model again"


@dataclass(frozen=True, slots=True)
class Shelf:
    """Tensors of one layer in the files."""

    prefix: str
    """What stands before their names."""
    shards: Mapping[str, SafetensorsFile]
    """The file of each tensor, by its whole name."""
    numbers: Mapping[str, Any]
    """Metadata of the model."""
    left: dict[str, None]
    """Tensors of which nothing is made yet."""

    def has(self, name: str) -> bool:
        """Whether there is a tensor."""
        return self.prefix + name in self.shards

    def take(self, name: str) -> tuple[SafetensorsFile, str]:
        """The file of a tensor that there is, and its whole name."""
        whole = self.prefix + name
        self.left.pop(whole, None)
        return self.shards[whole], whole


class Recipe(ABC):
    """How one tensor is made."""

    theirs: str
    """The name of the tensor in the files, in its layer."""

    @abstractmethod
    def make(self, name: str, stored: Shelf) -> Source | None:
        """The tensor `name` of a GGUF file; None where there is nothing to make it of.

        Raises FormatError.
        """


@dataclass(frozen=True, slots=True)
class Few(Recipe):
    """Few numbers, f32 in GGUF files, by their whole name; dimensions of 1 inside are dropped."""

    theirs: str
    change: Callable[[Array], Array] | None = None
    rows: str = ""
    """Metadata with the number of rows into which the values are cut."""
    parity: int | None = None
    """0 for the even columns only, 1 for the odd ones."""

    def make(self, name: str, stored: Shelf) -> Source | None:
        """See `Recipe`."""
        if not stored.has(self.theirs):
            return None
        file, whole = stored.take(self.theirs)
        entry = file.find(whole)
        order = None
        ne = tuple(n for i, n in enumerate(entry.ne[: entry.rank]) if i == 0 or n > 1)
        if self.rows:
            count, rows = int(np.prod(entry.ne)), stored.numbers[self.rows]
            if count % rows:
                raise _wrong(file, entry, f"{count} elements, not a multiple of {rows}")
            ne = (count // rows, rows)
        elif self.parity is not None:
            places = np.arange(int(np.prod(ne))).reshape(-1, ne[0])[:, self.parity :: 2]
            order, ne = places.reshape(-1), (places.shape[1], *ne[1:])
        return Values(name, file, entry, change=self.change, order=order, ne=ne)


@dataclass(frozen=True, slots=True)
class Chosen(Recipe):
    """Some rows of a matrix, by its whole name."""

    theirs: str
    order: Callable[[Mapping[str, Any], int], Order | None]
    """The rows, by the metadata and the number of all rows; None where these do not fit."""

    def make(self, name: str, stored: Shelf) -> Source | None:
        """See `Recipe`."""
        if not stored.has(self.theirs):
            return None
        file, whole = stored.take(self.theirs)
        entry = file.find(whole)
        order = self.order(stored.numbers, entry.ne[1]) if entry.rank == 2 else None
        if order is None:
            raise _wrong(file, entry, f"{entry.ne[1]} rows, not those that config.json implies")
        return Rows(name, [Piece(file, entry, 0, order.size, order)], (order.size,))


@dataclass(frozen=True, slots=True)
class Crossed(Recipe):
    """Matrices of experts [experts, inputs, outputs], or blocks of MXFP4 [experts, outputs, ...].

    Blocks are stored as `_blocks`, 16 bytes each, and `_scales`.
    """

    theirs: str
    parity: int | None = None
    """0 for the even outputs only, 1 for the odd ones."""

    def make(self, name: str, stored: Shelf) -> Source | None:
        """See `Recipe`."""
        outputs = slice(None) if self.parity is None else slice(self.parity, None, 2)
        if stored.has(self.theirs):
            file, whole = stored.take(self.theirs)
            entry = file.find(whole)
            if entry.rank != 3:
                raise _wrong(file, entry, f"{entry.rank} dimensions instead of 3")
            return Columns(name, file, entry, outputs)
        if not stored.has(f"{self.theirs}_blocks"):
            return None
        file, blocks = stored.take(f"{self.theirs}_blocks")
        if not stored.has(f"{self.theirs}_scales"):
            raise FormatError(
                f"{file.path}: tensor {quote(blocks)} is there without its scales; {FETCH_AGAIN}"
            )
        scales_file, scales = stored.take(f"{self.theirs}_scales")
        shape, of_scales = file.octets(blocks).shape, scales_file.octets(scales).shape
        if len(shape) != 4 or shape[3] != 16 or of_scales != shape[:3]:
            raise FormatError(
                f"{file.path}: tensor {quote(blocks)} is {list(shape)} and {quote(scales)} "
                f"{list(of_scales)}; blocks of MXFP4 are [experts, rows, blocks, 16] with scales "
                f"[experts, rows, blocks]; {CONTRADICT}"
            )
        return Fours(name, file.octets(blocks), scales_file.octets(scales), outputs)


def _wrong(file: SafetensorsFile, entry: FileTensor, what: str) -> FormatError:
    return FormatError(f"{file.path}: tensor {quote(entry.name)} has {what}; {CONTRADICT}")
