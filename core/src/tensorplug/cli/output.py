"""Output of commands: reports to stdout as text or JSON, errors to stderr as one paragraph."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Protocol

import typer

from tensorplug.errors import OptionError, TensorplugError
from tensorplug.registry.candidate import describe
from tensorplug.registry.guard import Failure, attempt
from tensorplug.text import one_line, printable

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Traceback = Annotated[
    bool,
    typer.Option("--traceback", envvar="TENSORPLUG_TRACEBACK", help="Show the Python traceback."),
]

_STYLE = re.compile("(\x1b\\[(?:31|0)m)")
"""The escape codes that `typer.style` writes around red text."""


class Showable(Protocol):
    """A report with a text for people (`str`) and data for programs (`to_json`)."""

    def to_json(self) -> dict[str, Any]: ...


def show(report: Showable, as_json: bool) -> None:
    """Print a report. In text, control characters are escaped, except the report's own colours."""
    if getattr(sys.stdout, "closed", False):
        raise OSError("standard output was closed by a plugin, or by a library of one")
    typer.echo(json.dumps(report.to_json(), indent=2) if as_json else _styled(str(report)))


def _styled(text: str) -> str:
    parts = _STYLE.split(text)
    parts[::2] = map(printable, parts[::2])
    return "".join(parts)


def words(error: BaseException) -> str:
    """The text of an error as one paragraph."""
    text = attempt(lambda: one_line(str(error)))
    return describe(error) if isinstance(text, Failure) else text


@contextmanager
def plain_errors(traceback: bool) -> Iterator[None]:
    """Print TensorplugError and OSError as one paragraph, and exit.

    The status is 2 for wrong usage (OptionError), else 1. With `traceback`, errors pass unchanged.
    """
    try:
        yield
    except (TensorplugError, OSError) as error:
        if traceback or isinstance(error, BrokenPipeError):  # typer exits silently on EPIPE
            raise
        typer.echo(f"error: {words(error)}", err=True)
        raise typer.Exit(2 if isinstance(error, OptionError) else 1) from error
