"""Reports to stdout as text or JSON, errors to stderr as one paragraph."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import typer

from tensorplug.errors import OptionError, TensorplugError


class Showable(Protocol):
    """A report: text for people, plain data for programs."""

    def to_json(self) -> dict[str, Any]: ...


def show(report: Showable, as_json: bool) -> None:
    """Print a report; escape codes vanish where the output is no terminal."""
    typer.echo(json.dumps(report.to_json(), indent=2) if as_json else str(report))


@contextmanager
def plain_errors(traceback: bool) -> Iterator[None]:
    """Turn our errors into a paragraph: exit 2 for what the user wrote, 1 for what was found."""
    try:
        yield
    except (TensorplugError, OSError) as error:
        if traceback or isinstance(error, BrokenPipeError):  # typer ends quietly where a pipe does
            raise
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2 if isinstance(error, OptionError) else 1) from error


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Around imports: name the extra of ours that brings what is missing."""
    try:
        yield
    except ImportError as error:
        raise TensorplugError(
            f"{what} cannot be imported ({error}); pip install 'tensorplug[{extra}]'"
        ) from error
