"""What is quantised: a GGUF file, or a folder that an installed distribution can read."""

from collections.abc import Callable
from pathlib import Path

from tensorplug.errors import OptionError
from tensorplug.gguf import ModelFile, open_gguf
from tensorplug.registry.discovery import offers
from tensorplug.registry.guard import Failure, attempt

GROUP = "tensorplug.model_folders"
"""Entry points of this group are functions that open a folder as a ModelFile."""


def open_source(path: Path) -> ModelFile:
    """Open a GGUF file or the folder of a model. Raises FormatError, OptionError."""
    if not path.is_dir():
        return open_gguf(path)
    found = next(iter(offers(GROUP)), None)
    if found is None:
        raise OptionError(
            f"quantize: {path} is a folder, and nothing that is installed reads folders; "
            "pip install tensorplug-llm"
        )
    reader: Callable[[Path], ModelFile] | Failure = attempt(found.entry.load)
    if isinstance(reader, Failure):
        raise OptionError(
            f"quantize: {found.distribution}, which reads folders, cannot be imported: "
            f"{reader.error}"
        ) from reader.error
    return reader(path)
