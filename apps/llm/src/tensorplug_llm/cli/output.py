"""What commands write: errors as one paragraph, texts of models."""

import sys
import traceback as tracebacks
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from tensorplug.errors import TensorplugError
from tensorplug.text import printable

INTERRUPTED = 130


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


def write(text: str) -> None:
    """Print text of a model at once, to a terminal without control characters."""
    # `typer.echo` would take escape sequences out of what goes to a pipe or a file.
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
