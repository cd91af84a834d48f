"""What commands write: errors as one paragraph, progress, texts of models."""

import sys
import traceback as tracebacks
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import typer

from tensorplug.errors import TensorplugError
from tensorplug.text import printable

INTERRUPTED = 130
BAR_DELAY = 1.0
"""Seconds after which a progress bar appears."""


@contextmanager
def reporting(*, traceback: bool) -> Iterator[None]:
    """Turn our errors into one paragraph on stderr and exit code 1."""
    try:
        yield
    except (TensorplugError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # typer ends quietly where a pipe does
            raise
        if traceback:
            tracebacks.print_exc()
        else:
            typer.echo(f"tensorplug-llm: {printable(str(error))}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def progress_bar(what: str, unit: str = "B") -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, if that is a terminal; call it with what is done, of how much.

    It appears after BAR_DELAY seconds, so that short work leaves the terminal as it is.
    """
    start = monotonic()
    bar: Any = None

    def update(done: int, total: int) -> None:
        nonlocal bar
        if bar is None and sys.stderr.isatty() and monotonic() - start >= BAR_DELAY:
            from tqdm import tqdm  # noqa: PLC0415 - most runs are over before they need it

            scaled = {"unit": unit, "unit_scale": True, "unit_divisor": 1024} if unit else {}
            bar = tqdm(desc=what, leave=False, **scaled)
        if bar is not None:
            bar.total = total
            bar.update(done - bar.n)

    try:
        yield update
    finally:
        if bar is not None:
            bar.close()


def write(text: str) -> None:
    """Print text of a model at once, to a terminal without control characters."""
    typer.echo(printable(text) if sys.stdout.isatty() else text, nl=False)
    sys.stdout.flush()
