"""`LanguageModel` and `load_model`: a model with its weights on the devices."""

import enum
import os
import time
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Literal

import tensorplug as tp
from tensorplug import Backend, Device, Tensor
from tensorplug.device import Resource
from tensorplug.errors import FormatError, OptionError
from tensorplug.gguf import (
    FileSource,
    FileTensor,
    ModelFile,
    Progress,
    WeightMode,
    Weights,
    load_weights,
)
from tensorplug_llm.arch import Architecture, architecture_of
from tensorplug_llm.embedding import Embedder, normalized
from tensorplug_llm.hparams import HParams
from tensorplug_llm.loader import add_output, check_tensors
from tensorplug_llm.opening import LoRA, open_model
from tensorplug_llm.placement import Placement, place
from tensorplug_llm.step import Floats
from tensorplug_llm.tokenizer import Tokenizer, load_tokenizer

AUTO: Literal["auto"] = "auto"
"""The layers, or the context, that fit."""
Auto = Literal["auto"]
DEFAULT_CONTEXT = 2048
"""Tokens of context unless asked for otherwise, or the model's own where that is less."""


TABLES = ("token_embd.weight", "token_types.weight", "position_embd.weight")
"""Tensors whose rows are looked up."""


RERANK_TEMPLATE = "tokenizer.chat_template.rerank"
"""What a causal reranker reads, with `{query}` and `{document}` in it."""


class Split(enum.StrEnum):
    """What several devices have of a model."""

    LAYER = "layer"
    """Each has some of the layers."""
    TENSOR = "tensor"
    """Each has a part of every layer; they compute at the same time."""


class LanguageModel(Resource):
    """A model whose weights are loaded. What is made of it shares its backends: one thread."""

    def __init__(
        self,
        file: ModelFile,
        plan: "Blueprint",
        tokenizer: Tokenizer,
        weights: Weights,
        backends: Sequence[Backend],
        owned: Sequence[Resource],
        *,
        context: int,
        load_seconds: float,
    ) -> None:
        """Made by `load_model`. What is `owned` closes with the model."""
        super().__init__()
        self.file = file
        self.architecture = plan.architecture
        self.hparams = plan.hparams
        self.tokenizer = tokenizer
        self.weights = weights
        self.placement = plan.placement
        self.backends = tuple(backends)
        self.load_seconds = load_seconds
        self.context = context
        """Tokens of the texts of engines that ask for no other number."""
        self._owned = tuple(owned)
        self._embedder: Embedder | None = None

    def context_of(self, context: int | None) -> int:
        """Return `context`, or the model's own for None. Raises OptionError."""
        return self.context if context is None else context_size(self.hparams, context)

    @property
    def embeds(self) -> bool:
        """Whether the model was made to embed texts or to rank them."""
        return _embeds(self.architecture, self.hparams)

    def embed(
        self,
        texts: Iterable[str],
        *,
        truncate: bool = False,
        normalize: bool = True,
        progress: Progress | None = None,
    ) -> Floats:
        """Embed texts of any lengths: f32 [texts, size], of length 1 each with `normalize`.

        Texts beyond the model's context are cut with `truncate`. `progress` is called after each
        pass with the number of texts that are done, and of all. Raises OptionError, PromptTooLong.
        """
        ids = [self.tokenizer.encode(text) for text in texts]
        found = self.embedder().embed(ids, truncate=truncate, progress=progress)
        return normalized(found) if normalize else found

    def rerank(self, query: str, documents: Iterable[str], *, truncate: bool = False) -> Floats:
        """Score how well each document answers a query: f32 [documents]. Raises OptionError."""
        ids = [self.pair(query, document) for document in documents]
        return self.embedder().rank(ids, truncate=truncate)

    def pair(self, query: str, document: str) -> list[int]:
        """Token ids that a reranker scores, by the template of its file if there is one."""
        template = self.file.metadata.get(RERANK_TEMPLATE)
        if isinstance(template, str):
            return self.tokenizer.filled(template, {"{query}": query, "{document}": document})
        return self.tokenizer.pair(query, document)

    def embedder(self) -> "Embedder":
        """Embeds texts of token ids; made when first asked for."""
        self.check_open()
        if self._embedder is None or self._embedder.closed:
            self._embedder = Embedder(self)
        return self._embedder

    def check_ids(self, ids: Sequence[int]) -> None:
        """Raise OptionError unless these are tokens of the model, at least one."""
        if not len(ids):
            raise OptionError("prompt: has no tokens; give at least one")
        if wrong := [id for id in ids if not _is_whole(id)]:
            raise OptionError(
                f"prompt: has {wrong[0]!r}; give ids of tokens, which tokenizer.encode(text) makes"
            )
        size = self.tokenizer.vocab_size
        if min(ids) < 0 or max(ids) >= size:
            raise OptionError(
                f"prompt: has token ids from {min(ids)} to {max(ids)}, and this model knows 0 to "
                f"{size - 1}"
            )

    def sources(self) -> dict[Tensor, FileSource]:
        """Where each weight can be read again."""
        return {t: FileSource(self.file, t.name) for t in self.weights.tensors.values()}

    @property
    def children(self) -> list[Resource]:
        """Engines and what else was made of this model; its own embedder closes with it."""
        return [child for child in super().children if child is not self._embedder]

    def _close(self) -> None:
        if self._embedder is not None:
            self._embedder.close(force=True)
        self.weights.close()
        self.file.close()
        for resource in reversed(self._owned):
            resource.close(force=True)

    def __repr__(self) -> str:
        state = "closed" if self.closed else ", ".join(b.name for b in self.backends)
        return f"<LanguageModel {self.file.path.name}, {self.hparams.architecture}, {state}>"


def _is_whole(id: object) -> bool:
    return type(id) is int or isinstance(id, Integral)


def context_size(hparams: HParams, context: int | None) -> int:
    """Return `context` if the model was trained for it, or a default. Raises OptionError."""
    if context is None:
        return min(DEFAULT_CONTEXT, hparams.context)
    if not 0 < context <= hparams.context:
        raise OptionError(
            f"context: {context} tokens; this model was trained for 1 to {hparams.context}"
        )
    return context


def is_encoder(path: str | os.PathLike[str]) -> bool:
    """Whether a model generates no text, so that it has no cache. Raises FormatError."""
    with open_model(path) as file:
        return not architecture_of(file).generates


def _embeds(architecture: Architecture, hparams: HParams) -> bool:
    generates = architecture.generates and hparams.causal
    return not generates or hparams.pooling not in ("", "none")


class Blueprint:
    """What a file holds, and where its tensors go, before anything is allocated."""

    given: list[Backend]
    """The streams that have layers."""
    streams: list[Backend]
    """All streams that compute."""
    placement: Placement

    def __init__(self, file: ModelFile) -> None:
        """Raises FormatError for the first thing in the file that is wrong."""
        self.architecture = architecture_of(file)
        self.hparams = self.architecture.read(file)
        self._file = file
        self._needed = check_tensors(file, self.architecture.tensors(self.hparams))
        self._is_tied = self.architecture.generates and "output.weight" not in file.tensors
        """Whether the embedding table is the output matrix too."""
        self._is_cut = False

    def open(
        self,
        owned: list[Resource],
        backends: Sequence[Backend],
        *,
        split: Split | str = Split.LAYER,
        ratio: Sequence[float] | None = None,
    ) -> None:
        """Open the streams that compute with `backends`, or over all of them; append to `owned`.

        Raises OptionError.
        """
        self._is_cut = split == Split.TENSOR
        self.given = list(backends)
        if self._is_cut:
            from tensorplug_llm.tensor_split import joined  # noqa: PLC0415 - seldom asked for

            self.given = [joined(owned, backends, self._file, self.hparams, ratio)]
        self.streams = list(self.given)
        if not self.streams[-1].buffer_type.is_host:
            self.streams.append(_open(owned, "cpu"))

    def place(self, *, rows: int, texts: int, counts: Sequence[int] | None = None) -> None:
        """Give each layer one of the streams `given`.

        There is room for `rows` of the cache and for the states of `texts`.
        """
        sizes = _layer_sizes(self._needed, self.hparams, rows, texts)
        tied = self._is_tied and not self._is_cut
        self.placement = place(sizes, self.given, self.streams[-1], counts=counts, tied=tied)

    def counts(self) -> tuple[int, ...]:
        """The layers of each of the streams `given`."""
        return tuple(map(self.placement.layers.count, self.given))

    def homes(self) -> dict[str, Device]:
        """The device of each tensor."""
        return {t.name: _home(t.name, self.placement).device for t in self._needed}

    def looked_up(self) -> tuple[str, ...]:
        """Tensors of which only rows are read."""
        return TABLES if self.lies_twice or not self._is_tied else ()

    @property
    def lies_twice(self) -> bool:
        """Whether the output matrix is a second copy of the embedding table."""
        return self._is_tied and self.placement.embedding is not self.placement.output


def load_model(  # noqa: PLR0913 - a program names only what it wants otherwise
    path: str | os.PathLike[str],
    backends: Sequence[Backend] | None = None,
    *,
    layers: Sequence[int] | None = None,
    split: Split | str = Split.LAYER,
    ratio: Sequence[float] | None = None,
    weights: WeightMode | str = WeightMode.AUTO,
    context: int | Auto | None = None,
    rows: int | None = None,
    contexts: int = 1,
    texts: int = 1,
    lora: Sequence[LoRA] = (),
    progress: Progress | None = None,
) -> LanguageModel:
    """Open a model and load its weights onto `backends`, by default the best one there is.

    `path` is that of a GGUF file or of a folder of Hugging Face, or a string that `find_model`
    knows, such as `hf:ORG/REPO`. Adapters, `lora`, are merged into the weights.
    `layers` says how many layers each backend takes; without it free memory decides, with room
    for a cache of `rows` tokens, by default of `contexts`, and for `texts` at once. Engines of the
    model have a `context` of this many tokens unless they ask for another; "auto" is the largest
    that the model was trained for and `rows` hold; a model that embeds takes this for any larger
    one. With `split` `tensor` the devices of the
    backends have parts of every layer, in the proportions of `ratio`, by default evenly. A `cpu`
    backend joins them where the host cannot read the memory of the last one. Backends that were
    given stay open when the model is closed. Raises FormatError, OptionError, OutOfMemory,
    BackendNotFound.
    """
    start = time.perf_counter()
    owned: list[Resource] = []
    file = open_model(path, lora)
    try:
        plan = Blueprint(file)
        tokenizer = _load_tokenizer(file, plan.hparams)
        if context == AUTO:
            trained = plan.hparams.context
            context = trained if rows is None else min(trained, rows)
        elif context is not None and _embeds(plan.architecture, plan.hparams):
            # A server may have models that generate, too, and one context for all of them.
            context = min(context, plan.hparams.context)
        context = context_size(plan.hparams, context)
        check_split(split, layers, ratio)
        given = backends or [_open(owned, "best")]
        plan.open(owned, given, split=split, ratio=ratio)
        plan.place(rows=contexts * context if rows is None else rows, texts=texts, counts=layers)
        loaded = load_weights(
            file,
            plan.homes(),
            mode=weights,
            looked_up=plan.looked_up(),
            progress=progress,
        )
        if plan.lies_twice:
            # The host looks rows up; a device has the same table, or devices parts of it, for the
            # logits.
            add_output(file, loaded, plan.placement.output.device)
        return LanguageModel(
            file,
            plan,
            tokenizer,
            loaded,
            plan.streams,
            owned,
            context=context,
            load_seconds=time.perf_counter() - start,
        )
    except BaseException:
        file.close()
        for resource in reversed(owned):
            resource.close(force=True)
        raise


def check_split(
    split: Split | str, layers: Sequence[int] | None, ratio: Sequence[float] | None
) -> None:
    """Raises OptionError for what does not go together."""
    if split not in list(Split):
        raise OptionError(f"split: {split!r} is unknown; choose {' or '.join(Split)}")
    if split == Split.TENSOR and layers is not None:
        raise OptionError("layers: every device has a part of each layer; give a ratio instead")
    if split == Split.LAYER and ratio is not None:
        raise OptionError("ratio: goes with the split tensor; give layers instead")


def _load_tokenizer(file: ModelFile, hparams: HParams) -> Tokenizer:
    tokenizer = load_tokenizer(file.metadata)
    if tokenizer.vocab_size > hparams.vocabulary:
        raise FormatError(
            f"{file.path}: the tokenizer has {tokenizer.vocab_size} tokens, and the embedding "
            f"table {hparams.vocabulary} rows; convert the model again"
        )
    return tokenizer


def _open(owned: list[Resource], spec: str) -> Backend:
    backend = tp.open(spec)
    owned.append(backend)
    return backend


def _home(name: str, placement: Placement) -> Backend:
    """The backend of a tensor."""
    if name.startswith("blk."):
        return placement.layers[int(name.split(".")[1])]
    return placement.embedding if name in TABLES else placement.output


def _layer_sizes(
    tensors: Sequence[FileTensor], hparams: HParams, rows: int, texts: int
) -> list[int]:
    """Bytes of each layer: its weights, and its part of a cache of f32 or of the texts' states."""
    sizes = [4 * rows * (hparams.key_row + hparams.value_row)] * hparams.layers
    if hparams.recurrence:
        for layer in hparams.recurrence.layers:
            sizes[layer] = 4 * texts * hparams.recurrence.kept
    for tensor in tensors:
        if tensor.name.startswith("blk."):
            sizes[int(tensor.name.split(".")[1])] += tensor.nbytes
    return sizes
