"""The model of a command, on the devices that its options name."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import tensorplug as tp
from tensorplug import Backend
from tensorplug.device import SupportsThreads
from tensorplug.errors import OptionError
from tensorplug_llm.cli.options import Loading
from tensorplug_llm.cli.output import progress_bar
from tensorplug_llm.model import LanguageModel, load_model
from tensorplug_llm.models import find_model

N = TypeVar("N", int, float)


@contextmanager
def loaded(model: str, loading: Loading, *, context: int | None = None) -> Iterator[LanguageModel]:
    """A model on opened devices; both are closed afterwards.

    Layers are placed so that there is room for a `context` of this many tokens.
    """
    counts = numbers("--layers", loading.layers, int, "10,20")
    shares = numbers("--ratio", loading.ratio, float, "3,1")
    with progress_bar("fetching") as bar:
        path = find_model(model, bar)
    tp.load_all()
    backends: list[Backend] = []
    try:
        backends.extend(tp.open(spec) for spec in loading.device or ["best"])
        _set_threads(backends, loading.threads)
        with progress_bar("loading") as bar:
            found = load_model(
                path,
                backends,
                layers=counts,
                split=loading.split,
                ratio=shares,
                weights=loading.weights,
                context=context,
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


def _set_threads(backends: list[Backend], threads: int | None) -> None:
    if threads is None:
        return
    able = [backend for backend in backends if isinstance(backend, SupportsThreads)]
    if not able:
        names = ", ".join(backend.name for backend in backends)
        raise OptionError(f"--threads: {names} has no threads to set; leave the option out")
    for backend in able:
        backend.threads = threads
