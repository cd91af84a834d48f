"""`Folder`: a model of Hugging Face, with the names, order and metadata of a GGUF file."""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

import numpy as np

from tensorplug.device import FileRange
from tensorplug.errors import FormatError
from tensorplug.gguf import FileTensor, Metadata
from tensorplug.gguf.cursor import CONVERT_AGAIN, FETCH_AGAIN, quote
from tensorplug.gguf.strings import Bytes
from tensorplug_llm.folders.config import Config, read_config
from tensorplug_llm.folders.family import Family
from tensorplug_llm.folders.jsonfile import Fields, read_object
from tensorplug_llm.folders.made import (
    Given,
    MadeFile,
    Order,
    Piece,
    Rows,
    Source,
    Stored,
    Values,
    neighbours,
)
from tensorplug_llm.folders.recipes import Shelf
from tensorplug_llm.folders.safetensors import SafetensorsFile, open_safetensors
from tensorplug_llm.folders.sentences import read_sentences
from tensorplug_llm.folders.tokens import read_tokenizer
from tensorplug_llm.hparams import POOLINGS

CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
IMAGES = ("vision_tower.", "multi_modal_projector.")
"""Beginnings of names of tensors that read images, which are left out."""
LEFT_OUT = r".*\.rotary_emb\.inv_freq|.*\.attn\.(bias|masked_bias)"
"""Tensors that old versions stored, and that follow from the sizes."""

ROUTERS = "ffn_gate_inp"
"""Weights that choose experts, which GGUF files have in f32; one of a shared expert is a vector."""

Found = tuple[SafetensorsFile, FileTensor]


class Folder(MadeFile):
    """An open folder, made by `open_folder`. Tensors are mapped, or made when they are read."""

    def __init__(self, path: Path) -> None:
        """Raises FormatError for the first thing that is wrong."""
        super().__init__(path)
        if not (path / CONFIG).exists():
            gguf = min((file.name for file in path.glob("*.gguf")), default="")
            remedy = f"such as {path / gguf}" if gguf else "or the folder of a Hugging Face model"
            raise FormatError(
                f"{path}: has no {CONFIG}, so it is not a model; give a GGUF file, {remedy}"
            )
        config = read_config(path / CONFIG)
        self.architecture = config.family.architecture
        with ExitStack() as stack:
            shards = _shards(path)
            for shard in shards.values():
                stack.callback(shard.close)
            self._files = tuple(dict.fromkeys(shards.values()))
            self._shards = shards
            self._config = config
            self._called: dict[str, str] = {}
            sentences = read_sentences(path, len(config.family.dense))
            dense = [stack.enter_context(open_safetensors(p / SINGLE)) for p in sentences.dense]
            self._files += tuple(dense)
            sources = [*self._read_tensors(), *self._read_dense(dense)]
            self._sources = {source.tensor.name: source for source in sources}
            self.tensors = MappingProxyType({n: s.tensor for n, s in self._sources.items()})
            self.metadata = self._read_metadata(config, sentences.pooling)
            stack.pop_all()

    # --- what the files hold ---------------------------------------------------------------------

    def _read_metadata(self, config: Config, pooling: str) -> Metadata:
        table = self.tensors.get("token_embd.weight")
        rows = table.ne[1] if table is not None else 0
        numbers = {f"{self.architecture}.{key}": value for key, value in config.numbers.items()}
        stored = {
            "general.architecture": self.architecture,
            "general.name": self.path.resolve().name.encode(errors="backslashreplace").decode(),
            **numbers,
            f"{self.architecture}.vocab_size": rows,
            **read_tokenizer(self.path, config.fields, rows),
        }
        if pooling:
            stored[f"{self.architecture}.pooling_type"] = POOLINGS.index(pooling)
        for name in config.family.dense:
            if (matrix := self.tensors.get(f"{name}.weight")) is not None:
                stem = f"{self.architecture}.{name}_feat"
                stored |= {f"{stem}_in": matrix.ne[0], f"{stem}_out": matrix.ne[1]}
        if config.fields.has("type_vocab_size"):
            stored["tokenizer.ggml.token_type_count"] = config.fields.size("type_vocab_size")
        return Metadata(stored, None, str(self.path))

    def _read_tensors(self) -> Iterator[Source]:
        family = self._config.family
        prefix = self._config.prefix or self._prefix(family)
        left = dict.fromkeys(self._shards)
        tied = self._config.fields.flag("tie_word_embeddings", default=False)
        for name, theirs in family.model.items():
            if not (tied and name == "output"):
                yield from self._with_bias(name, prefix + theirs, left)
            else:
                left.pop(f"{prefix}{theirs}.weight", None)
        # Layers without a tensor do not count, so a wrong number of layers ends here.
        layers = min(self._config.numbers["block_count"], len(self._shards))
        for i in range(layers):
            stem = f"{prefix}{family.layers}.{i}."
            for name, theirs in family.layer.items():
                yield from self._with_bias(f"blk.{i}.{name}", stem + theirs, left)
            stored = Shelf(stem, self._shards, self._config.numbers, left)
            for name, recipe in family.recipes.items():
                self._called[f"blk.{i}.{name}"] = stem + recipe.theirs
                if (source := recipe.make(f"blk.{i}.{name}", stored)) is not None:
                    yield source
        for name, values in self._config.factors.items():
            yield Given(name, values)
        left_out = re.compile(f"{LEFT_OUT}|({re.escape(prefix)})?({family.left_out})")
        for name in left:
            if not (name.startswith(IMAGES) or left_out.fullmatch(name)):
                raise FormatError(
                    f"{self.path}: tensor {quote(name)} has no place in the architecture "
                    f"{self.architecture}, and leaving it out would give wrong answers; use a "
                    "newer tensorplug-llm"
                )

    def _read_dense(self, files: list[SafetensorsFile]) -> Iterator[Source]:
        """Matrices that follow the pooling."""
        for name, file in zip(self._config.family.dense, files, strict=False):
            yield Stored(f"{name}.weight", file, file.find("linear.weight"))

    def _prefix(self, family: Family) -> str:
        """What stands before all names."""
        table = f"{family.model['token_embd']}.weight"
        found = (prefix for prefix in family.prefixes if prefix + table in self._shards)
        return next(found, family.prefixes[0])

    def _with_bias(self, name: str, theirs: str, left: dict[str, None]) -> Iterator[Source]:
        """Weight and bias, those that there are."""
        stem, _, half = theirs.partition("#")
        for kind in ("weight", "bias"):
            whole = f"{name}.{kind}"
            self._called[whole] = f"{stem}.{kind}"
            if "{expert}" in stem:
                yield from self._experts(whole, f"{stem}.{kind}", left)
            elif f"{stem}.{kind}" in self._shards:
                left.pop(f"{stem}.{kind}", None)
                file, entry = self._find(f"{stem}.{kind}")
                yield self._made(whole, file, entry, half)

    def _experts(self, name: str, theirs: str, left: dict[str, None]) -> Iterator[Source]:
        """The matrices of all experts, one after the other."""
        count = self._config.numbers["expert_count"]
        if theirs.format(expert=0) not in self._shards:
            return
        pieces = []
        for expert in range(min(count, len(self._shards))):
            file, entry = self._find(theirs.format(expert=expert))
            left.pop(entry.name, None)
            pieces.append(Piece(file, entry, 0, _rows(entry)))
        if len({piece.count for piece in pieces}) > 1:
            raise FormatError(
                f"{self.path}: the matrices {quote(theirs)} are not of one size; {CONVERT_AGAIN}"
            )
        yield Rows(name, pieces, (pieces[0].count, len(pieces)))

    def _made(self, name: str, file: SafetensorsFile, entry: FileTensor, half: str) -> Source:
        """How one tensor is read."""
        order = self._order(name, entry)
        if entry.rank == 1 or "norm" in name or ROUTERS in name:
            plus = np.float32(self._config.family.norm_plus)
            change = (lambda values: values + plus) if plus and "norm" in name else None
            return Values(name, file, entry, change=change, order=order)
        if order is not None and entry.rank > 2:
            raise self._wrong_rows(entry, "one matrix")
        if half:
            return self._half(name, file, entry, first=half.startswith("0"))
        first = self._config.family.first_rows.get(name.removesuffix(".weight"), 0)
        if first:
            if entry.rank != 2 or entry.ne[1] <= first:
                raise self._wrong_rows(entry, f"a number above {first}")
            count = entry.ne[1] - first
            return Rows(name, [Piece(file, entry, first, count)], (count,))
        if order is not None:
            return Rows(name, [Piece(file, entry, 0, _rows(entry), order)], (entry.ne[1],))
        return Stored(name, file, entry)

    def _half(self, name: str, file: SafetensorsFile, entry: FileTensor, *, first: bool) -> Source:
        """One half of the rows of each matrix."""
        rows, count = entry.ne[1], entry.ne[2]
        if rows % 2:
            raise self._wrong_rows(entry, "2")
        begin = 0 if first else rows // 2
        pieces = [Piece(file, entry, rows * i + begin, rows // 2) for i in range(count)]
        return Rows(name, pieces, (rows // 2, count) if entry.rank == 3 else (rows // 2,))

    def _order(self, name: str, entry: FileTensor) -> Order | None:
        """The order of the rows of queries and keys, where pairs are to turn."""
        part = name.split(".")[-2]
        if self._config.family.turns_halves or part not in ("attn_q", "attn_k"):
            return None
        numbers = self._config.numbers
        heads = numbers["attention.head_count" + ("_kv" if part == "attn_k" else "")]
        rows = entry.ne[0] if entry.rank == 1 else _rows(entry)
        if rows % (2 * heads):
            raise self._wrong_rows(entry, f"2 x {heads} heads")
        return neighbours(rows, heads)

    def _wrong_rows(self, entry: FileTensor, unit: str) -> FormatError:
        return FormatError(
            f"{self.path}: tensor {quote(entry.name)} has {_rows(entry)} rows, not a multiple of "
            f"{unit}; config.json and the tensors contradict each other: fetch the model again"
        )

    def _find(self, name: str) -> Found:
        """A tensor by its name in the files. Raises FormatError."""
        file = self._shards.get(name)
        if file is None:
            raise FormatError(f"{self.path}: tensor {quote(name)} is missing; {FETCH_AGAIN}")
        return file, file.find(name)

    # --- a TensorFile ----------------------------------------------------------------------------

    def called(self, name: str) -> str:
        """The name in the files of what is called `name` in GGUF."""
        return self._called.get(name, name)

    def memory_of(self, name: str) -> Bytes | None:
        """The mapped shard of a tensor; None where it is made when it is read."""
        self.find(name)
        return self._sources[name].memory

    def part_of(self, name: str, start: int, size: int) -> Bytes:
        """`size` bytes from `start`: a view, or a copy where they are made."""
        self.find(name)
        return self._sources[name].part(start, size)

    def range_of(self, name: str) -> FileRange | None:
        """None: another machine would have to read the folder itself."""
        self.find(name)
        return None

    def check_size(self) -> None:
        """Raise FormatError if a file was shortened since it was opened."""
        for file in self._files:
            file.check_size()

    def release(self, name: str | None = None, start: int = 0, size: int = 0) -> None:
        """Free mapped pages: of a part of a tensor, or of all files."""
        if name is not None:
            self._sources[name].release(start, size)
            return
        for file in self._files:
            file.release()

    def _close(self) -> None:
        super()._close()
        for file in self._files:
            file.close()


def open_folder(path: str | os.PathLike[str]) -> Folder:
    """Open and check the folder of a model. Raises FormatError.

    Everything except the tensors' data is checked. Weights in f32, f16 and bf16 are mapped; rows of
    queries and keys in another order, experts, vectors and halves of matrices are copied when they
    are read.
    """
    return Folder(Path(path))


def _rows(entry: FileTensor) -> int:
    return entry.ne[1] * entry.ne[2] * entry.ne[3]


def _shards(folder: Path) -> dict[str, SafetensorsFile]:
    """The file of each tensor. Raises FormatError."""
    if not (folder / INDEX).exists():
        return _of_one(_only(folder))
    index = Fields(read_object(folder / INDEX), str(folder / INDEX))
    places = index.section("weight_map").values
    opened: dict[str, SafetensorsFile] = {}
    with ExitStack() as stack:
        for name, place in places.items():
            if not isinstance(place, str) or Path(place).name != place or "\0" in place:
                raise index.error("weight_map", f"{quote(place)} is not a file of the folder")
            if place not in opened:
                opened[place] = stack.enter_context(open_safetensors(folder / place))
            file = opened[place]
            if name not in file.tensors and name not in file.unusable:
                raise FormatError(
                    f"{index.what}: tensor {quote(name)} should be in {place}, and is not; "
                    f"{FETCH_AGAIN}"
                )
        stack.pop_all()
    if not opened:
        raise index.error("weight_map", "there are no tensors")
    return {name: opened[place] for name, place in places.items()}


def _of_one(path: Path) -> dict[str, SafetensorsFile]:
    file = open_safetensors(path)
    return dict.fromkeys([*file.tensors, *file.unusable], file)


def _only(folder: Path) -> Path:
    """The one file of weights. Raises FormatError."""
    found = sorted(folder.glob("*.safetensors"))
    if (folder / SINGLE) in found or len(found) == 1:
        return folder / SINGLE if (folder / SINGLE) in found else found[0]
    if found:
        raise FormatError(
            f"{folder}: has {len(found)} files *.safetensors and no {INDEX}, which says what is "
            f"where; {FETCH_AGAIN}"
        )
    others = sorted(file.name for file in folder.glob("*.bin")) + sorted(
        file.name for file in folder.glob("*.gguf")
    )
    what = f"; {others[0]} is there" if others else ""
    raise FormatError(
        f"{folder}: has no *.safetensors{what}; give the path of a GGUF file, or save the model "
        "as safetensors"
    )
