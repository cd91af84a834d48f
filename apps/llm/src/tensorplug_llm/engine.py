"""`LanguageModel` and `load_model`: a GGUF file with its weights on the devices."""

import os
import time
from collections.abc import Sequence

import tensorplug as tp
from tensorplug import Backend, DType
from tensorplug.errors import FormatError, OptionError
from tensorplug.gguf import GGUFFile, GGUFTensor, open_gguf
from tensorplug.lifetime import Resource
from tensorplug_llm.arch import Architecture, architecture_of
from tensorplug_llm.hparams import HParams
from tensorplug_llm.loader import Progress, WeightMode, Weights, check_tensors, load_weights
from tensorplug_llm.placement import Placement, place
from tensorplug_llm.session import Session
from tensorplug_llm.tokenizer import Tokenizer, load_tokenizer

DEFAULT_CONTEXT = 2048
"""Tokens of context unless asked for otherwise, or the model's own where that is less."""


class LanguageModel(Resource):
    """A model whose weights are loaded. Sessions of one model share its backends: one thread."""

    def __init__(
        self,
        file: GGUFFile,
        architecture: Architecture,
        hparams: HParams,
        tokenizer: Tokenizer,
        weights: Weights,
        placement: Placement,
        backends: Sequence[Backend],
    ) -> None:
        """Made by `load_model`."""
        super().__init__()
        self.file = file
        self.architecture = architecture
        self.hparams = hparams
        self.tokenizer = tokenizer
        self.weights = weights
        self.placement = placement
        self.backends = tuple(backends)
        self.load_seconds = 0.0
        self._owned: list[Backend] = []

    def session(self, context: int | None = None, *, kv: DType | None = None) -> Session:
        """Begin a text of up to `context` tokens. Raises OptionError, OutOfMemory.

        `kv` is the element type of the cache: by default f32 on processors, f16 elsewhere.
        """
        self.check_open()
        return Session(self, context_size(self.hparams, context), kv)

    def _close(self) -> None:
        self.weights.close()
        self.file.close()
        for backend in self._owned:
            backend.close(force=True)

    def __repr__(self) -> str:
        state = "closed" if self.closed else ", ".join(b.name for b in self.backends)
        return f"<LanguageModel {self.file.path.name}, {self.hparams.architecture}, {state}>"


def context_size(hparams: HParams, context: int | None) -> int:
    """Check a wish for a context of so many tokens, or choose one. Raises OptionError."""
    if context is None:
        return min(DEFAULT_CONTEXT, hparams.context)
    if not 0 < context <= hparams.context:
        raise OptionError(
            f"context: {context} tokens; this model was trained for 1 to {hparams.context}"
        )
    return context


def load_model(
    path: str | os.PathLike[str],
    backends: Sequence[Backend] | None = None,
    *,
    layers: Sequence[int] | None = None,
    weights: WeightMode | str = WeightMode.AUTO,
    progress: Progress | None = None,
) -> LanguageModel:
    """Open a GGUF file and load its weights onto `backends`, by default the best one there is.

    `layers` says how many layers each backend takes; without it free memory decides. A `cpu`
    backend joins them where the host cannot read the memory of the last one. Backends that were
    given stay open when the model is closed. Raises FormatError, OptionError, OutOfMemory,
    BackendNotFound.
    """
    start = time.perf_counter()
    mode = WeightMode(weights)
    owned: list[Backend] = []
    file = open_gguf(path)
    try:
        architecture = architecture_of(file)
        hparams = architecture.read(file)
        needed = check_tensors(file, architecture.tensors(hparams))
        tokenizer = _load_tokenizer(file, hparams)
        given = list(backends or ())
        if not given:
            given.append(_open(owned, "best"))
        streams = list(given)
        if not streams[-1].buffer_type.is_host:
            streams.append(_open(owned, "cpu"))
        tied = "output.weight" not in file.tensors
        placement = place(
            _layer_sizes(needed, hparams), given, streams[-1], counts=layers, tied=tied
        )
        loaded = load_weights(
            file,
            {t.name: _home(t.name, placement).device for t in needed},
            mode=mode,
            looked_up=() if tied else ("token_embd.weight",),
            progress=progress,
        )
        model = LanguageModel(file, architecture, hparams, tokenizer, loaded, placement, streams)
    except BaseException:
        file.close()
        for backend in owned:
            backend.close(force=True)
        raise
    model._owned = owned
    model.load_seconds = time.perf_counter() - start
    return model


def _load_tokenizer(file: GGUFFile, hparams: HParams) -> Tokenizer:
    tokenizer = load_tokenizer(file.metadata)
    if tokenizer.vocab_size > hparams.vocabulary:
        raise FormatError(
            f"{file.path}: the tokenizer has {tokenizer.vocab_size} tokens, and the embedding "
            f"table {hparams.vocabulary} rows; convert the model again"
        )
    return tokenizer


def _open(owned: list[Backend], spec: str) -> Backend:
    backend = tp.open(spec)
    owned.append(backend)
    return backend


def _home(name: str, placement: Placement) -> Backend:
    """The backend of a tensor."""
    if name.startswith("blk."):
        return placement.layers[int(name.split(".")[1])]
    return placement.embedding if name.startswith("token_embd.") else placement.output


def _layer_sizes(tensors: Sequence[GGUFTensor], hparams: HParams) -> list[int]:
    """Bytes of each layer: its weights, and its part of a cache of f32 of the default context."""
    rows = context_size(hparams, None) * 4
    sizes = [rows * (hparams.key_row + hparams.value_row)] * hparams.layers
    for tensor in tensors:
        if tensor.name.startswith("blk."):
            sizes[int(tensor.name.split(".")[1])] += tensor.nbytes
    return sizes
