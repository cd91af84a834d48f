"""`open_model`: a model of any format."""

import os
from pathlib import Path

from tensorplug.gguf import ModelFile, open_gguf
from tensorplug_llm.models import find_model


def open_model(model: str | os.PathLike[str]) -> ModelFile:
    """Open a GGUF file or the folder of a model of Hugging Face.

    `model` is a path, or a string that `find_model` knows, such as `hf:ORG/REPO`. Raises
    OptionError, FormatError.
    """
    path = find_model(model) if isinstance(model, str) else Path(model)
    if not path.is_dir():
        return open_gguf(path)
    from tensorplug_llm.folders import open_folder  # noqa: PLC0415 - most models are files

    return open_folder(path)
