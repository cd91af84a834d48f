"""`embed`: texts of a file as vectors."""

import json
from typing import Annotated

import numpy as np
import typer

from tensorplug.cli.progress import showing_progress
from tensorplug.errors import OptionError
from tensorplug_llm.cli.loading import loaded
from tensorplug_llm.cli.options import Loading, Model, Output, with_groups
from tensorplug_llm.cli.output import reporting
from tensorplug_llm.cli.texts import STDIN, read_text
from tensorplug_llm.step import Floats

MOST_TEXT = 1 << 26
"""Bytes of all texts."""


@with_groups
def embed(
    model: Model,
    file: Annotated[
        str, typer.Argument(help="A text in UTF-8, one text to embed in each line; - is stdin.")
    ] = STDIN,
    *,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut texts that are longer than the context.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Do not scale vectors to length 1.")] = False,
    loading: Loading,
    output: Output,
) -> None:
    """Write the embedding of each line that is not empty, as a line of numbers."""
    with reporting(traceback=output.traceback):
        texts = _lines(file)
        with loaded(model, loading) as found, showing_progress("embedding", "texts") as done:
            vectors = found.embed(texts, truncate=truncate, normalize=not raw, progress=done)
        if output.json:
            typer.echo(json.dumps({"embeddings": [_numbers(vector) for vector in vectors]}))
        else:
            for vector in vectors:
                typer.echo(" ".join(map(str, _numbers(vector))))


def _numbers(vector: Floats) -> list[float]:
    """Numbers as short as they can be read back."""
    return [float(np.format_float_positional(n, unique=True, trim="-")) for n in vector]


def _lines(file: str) -> list[str]:
    """The lines that are not empty. Raises OptionError."""
    text = read_text(file, MOST_TEXT, give="a text, or - for stdin", shorten="embed it in parts")
    lines = [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
    if not lines:
        raise OptionError(f"{file}: has no lines with text in them; give one text a line")
    return lines
