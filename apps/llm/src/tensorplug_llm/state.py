"""Saved states: what a model keeps of a text in a file, so that a long prompt is read once.

| part | bytes |
|---|---|
| `TPSTATE`, a line end, the version, size of the header | 8, u32, u32 |
| header in JSON: model, rope factors, number of tokens, name, type and row bytes of each table | |
| tokens | i32 each |
| rows of the tokens in each table of the cache | |
| the row of the text in each table of recurrent layers | |
| BLAKE2b of all that | 32 |
"""

import contextlib
import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tensorplug import Scheduler, Tensor
from tensorplug.errors import FormatError, OptionError
from tensorplug.gguf.tensorfile import TensorFile
from tensorplug.system.wholefile import whole_file
from tensorplug_llm.cache import PAGE
from tensorplug_llm.hparams import HParams
from tensorplug_llm.resting import Rest

MAGIC = b"TPSTATE\n"
VERSION = 2
HEAD = struct.Struct("<8sII")
DIGEST = 32
SAMPLE = 4096
"""Bytes of each weight that tell one model from another of the same shape."""


def fingerprint(file: TensorFile, hparams: HParams) -> str:
    """Tells a model from others: by its constants, its table of tensors and a part of each."""
    digest = hashlib.blake2b(repr(hparams).encode(), digest_size=DIGEST)
    for tensor in file.tensors.values():
        digest.update(f"{tensor.name} {tensor.dtype} {tensor.ne}\n".encode())
        sample = file.part_of(tensor.name, 0, min(SAMPLE, tensor.nbytes))
        digest.update(sample.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class SavedText:
    """What a file holds that was checked: its tokens, and where their rows begin."""

    ids: list[int]
    rows_at: int


class StateFile:
    """Reads and writes what tables keep of a text. Belongs to the thread of the scheduler.

    Those of the cache have a row for each token, those of recurrent layers one for the text.
    """

    def __init__(
        self,
        path: Path,
        model: str,
        turn: str,
        tables: Sequence[Tensor],
        states: Sequence[Tensor],
        scheduler: Scheduler,
    ) -> None:
        """`model` is a `fingerprint`, `turn` names the factors of rotary frequencies.

        Raises OptionError for a folder, such as "" and ".".
        """
        if path.is_dir():
            raise OptionError(f"{path}: is a folder; give the path of a file for the state")
        self.path = path
        self._model = model
        self._turn = turn
        self._tables = tables
        self._states = states
        self._scheduler = scheduler

    def check(self) -> None:
        """Raise OptionError where the file cannot be written."""
        with self._naming(), tempfile.TemporaryFile(dir=Path(os.path.realpath(self.path)).parent):
            pass

    def save(self, text: Rest) -> None:
        """Write what was read of a text. Raises OptionError."""
        header = json.dumps(self._header(len(text.ids))).encode()
        digest = hashlib.blake2b(digest_size=DIGEST)
        self._scheduler.synchronize()
        with (
            self._naming(),
            whole_file(self.path) as unfinished,
            unfinished.open("wb") as file,
        ):

            def write(data: bytes) -> None:
                digest.update(data)
                file.write(data)

            write(HEAD.pack(MAGIC, VERSION, len(header)) + header)
            write(np.asarray(text.ids, "<i4").tobytes())
            for table, ranges in self._ranges(text):
                place = self._scheduler.place_of(table)
                for offset, size in ranges:
                    write(place.buffer.read(place.offset + offset, size).tobytes())
            file.write(digest.digest())

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        """Errors of the system name the file."""
        try:
            yield
        except OSError as error:
            raise OptionError(f"{self.path}: {error.strerror}; give another file") from error

    def saved(self) -> SavedText:
        """Check the whole file; return what is in it. Raises FormatError."""
        try:
            with self.path.open("rb") as file:
                return self._checked(file)
        except OSError as error:
            raise FormatError(f"{self.path}: {error.strerror}; give another file") from error

    def load(self, text: SavedText, into: Rest) -> None:
        """Fill pages and slot with what `saved` gave, or pages with its beginning.

        Raises FormatError.
        """
        with self.path.open("rb") as file:
            file.seek(text.rows_at)
            left = len(text.ids) - len(into.ids)
            for table, ranges in self._ranges(into):
                place = self._scheduler.place_of(table)
                for offset, size in ranges:
                    data = file.read(size)
                    if len(data) != size:
                        raise self._damaged("changed while it was read")
                    place.buffer.write(place.offset + offset, np.frombuffer(data, np.uint8))
                file.seek(left * table.nb[1], os.SEEK_CUR)

    def _checked(self, file: BinaryIO) -> SavedText:
        """The text of a file that is whole and of this model."""
        size = os.fstat(file.fileno()).st_size
        start = file.read(HEAD.size)
        if len(start) < HEAD.size or start[: len(MAGIC)] != MAGIC:
            raise FormatError(f"{self.path}: is not a saved state; give another file")
        _, version, length = HEAD.unpack(start)
        if version != VERSION:
            raise FormatError(
                f"{self.path}: has version {version} of saved states, and this program reads "
                f"{VERSION}; delete it"
            )
        if length > size:
            raise self._damaged("is too short")
        head = file.read(length)
        begin = file.tell()
        digest = hashlib.blake2b(start + head, digest_size=DIGEST)
        left = size - begin - DIGEST
        while left > 0 and (data := file.read(min(left, 1 << 20))):
            digest.update(data)
            left -= len(data)
        if left or file.read() != digest.digest():
            raise self._damaged("its checksum is wrong")
        tokens = self._tokens(head)
        row, whole = (sum(t.nb[1] for t in kind) for kind in (self._tables, self._states))
        if size != begin + tokens * (4 + row) + whole + DIGEST:
            raise self._damaged(f"has {size} bytes, which are not those of {tokens} tokens")
        file.seek(begin)
        ids = np.frombuffer(file.read(4 * tokens), "<i4").tolist()
        return SavedText(ids, file.tell())

    def _tokens(self, head: bytes) -> int:
        """The number of tokens in a header that is this model's otherwise."""
        try:
            header = json.loads(head)
            tokens = header["tokens"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self._damaged("its header cannot be read") from None
        if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 < tokens < 1 << 31:
            raise self._damaged("its header has no number of tokens")
        mine = self._header(tokens)
        if header == mine:
            return tokens
        if header.get("model") != mine["model"]:
            raise FormatError(
                f"{self.path}: was saved by another model; give another file, or delete it"
            )
        if header.get("turn") != mine["turn"]:
            raise FormatError(
                f"{self.path}: was saved in a context for which this model turns keys otherwise "
                f"({self._turn} now); give the same --context, or delete it"
            )
        raise FormatError(
            f"{self.path}: was saved from a cache of other types; give the same --kv and devices, "
            "or delete it"
        )

    def _header(self, tokens: int) -> Mapping[str, object]:
        tables = [[t.name, t.dtype.name, t.nb[1]] for t in (*self._tables, *self._states)]
        return {"model": self._model, "turn": self._turn, "tokens": tokens, "tables": tables}

    def _damaged(self, why: str) -> FormatError:
        return FormatError(f"{self.path}: is damaged: {why}; delete it")

    def _ranges(self, text: Rest) -> Iterator[tuple[Tensor, list[tuple[int, int]]]]:
        """Offsets and sizes of what each table keeps of a text."""
        for table in self._tables:
            row = table.nb[1]
            yield (
                table,
                [
                    (page * PAGE * row, min(PAGE, len(text.ids) - number * PAGE) * row)
                    for number, page in enumerate(text.pages)
                ],
            )
        for table in self._states:
            row = table.nb[1]
            yield table, [(text.slot * row, row)]
