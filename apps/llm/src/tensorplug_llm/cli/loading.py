"""The model of a command, on the devices that its options name."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import tensorplug as tp
from tensorplug import Backend
from tensorplug.cli.progress import showing_progress
from tensorplug.device import SupportsThreads
from tensorplug.errors import OptionError
from tensorplug_llm.cli.options import Loading, Remembering
from tensorplug_llm.fit import fit
from tensorplug_llm.model import AUTO, Auto, LanguageModel, is_encoder, load_model
from tensorplug_llm.models import find_model
from tensorplug_llm.opening import LoRA

N = TypeVar("N", int, float)


@contextmanager
def loaded(
    model: str,
    loading: Loading,
    remembering: Remembering | None = None,
    *,
    texts: int = 1,
    contexts: int = 1,
    rows: int | None = None,
) -> Iterator[LanguageModel]:
    """A model on opened devices; both are closed afterwards.

    There is room for an engine that runs `texts`, with a cache of `contexts` or of `rows` tokens.
    """
    remembering = remembering or Remembering()
    context = context_wanted(remembering.context)
    layers = layers_wanted(loading.layers)
    lora = adapters(loading.lora)
    shares = shares_wanted(loading.ratio)
    with showing_progress("fetching", "B") as bar:
        path = find_model(model, bar)
    tp.load_all()
    backends: list[Backend] = []
    try:
        backends.extend(tp.open(spec) for spec in loading.device or ["best"])
        _set_threads(backends, loading.threads)
        if layers == AUTO or (context == AUTO and rows is None and not is_encoder(path)):
            sized = fit(
                path,
                backends,
                context=context,
                sequences=texts,
                contexts=contexts,
                kv=remembering.kv_type,
                layers=layers,
                split=loading.split,
                ratio=shares,
                weights=loading.weights,
                lora=lora,
                prompt_lookup=remembering.prompt_lookup,
            )
            context, layers, shares = sized.context, sized.layers, sized.ratio
        with showing_progress("loading", "B") as bar:
            found = load_model(
                path,
                backends,
                layers=layers,
                split=loading.split,
                ratio=shares,
                weights=loading.weights,
                lora=lora,
                context=context,
                rows=rows,
                contexts=contexts,
                texts=texts,
                progress=bar,
            )
        with found:
            # What start-up made stays: collections need not look through it.
            gc.freeze()
            gc.enable()
            yield found
    finally:
        for backend in backends:
            backend.close(force=True)


def context_wanted(text: str | None) -> int | Auto | None:
    """The number of `--context`. Raises OptionError."""
    if text is None or text == AUTO:
        return AUTO if text else None
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text)):
        raise OptionError(f"--context: {text!r} is not a number of tokens; give one, or auto")
    return int(text)


def layers_wanted(text: str | None) -> Sequence[int] | Auto | None:
    """The numbers of `--layers`. Raises OptionError."""
    return AUTO if text == AUTO else numbers("--layers", text, int, "10,20")


def shares_wanted(text: str | None) -> Sequence[float] | None:
    """The numbers of `--ratio`. Raises OptionError."""
    return numbers("--ratio", text, float, "3,1")


def numbers(option: str, text: str | None, kind: type[N], example: str) -> list[N] | None:
    """The numbers of an option, with commas between them. Raises OptionError."""
    if text is None:
        return None
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(
            f"{option}: {text!r} is not a list of numbers; give one for each device, such as "
            f"{example}"
        ) from None


def adapters(given: list[str] | None) -> list[LoRA]:
    """The adapters of `--lora`. Raises OptionError."""
    return [LoRA.parse(text) for text in given or ()]


def _set_threads(backends: list[Backend], threads: int | None) -> None:
    if threads is None:
        return
    able = [backend for backend in backends if isinstance(backend, SupportsThreads)]
    if not able:
        names = ", ".join(backend.name for backend in backends)
        raise OptionError(f"--threads: {names} has no threads to set; leave the option out")
    for backend in able:
        backend.threads = threads
