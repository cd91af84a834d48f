"""`open_model`: a model of any format, with adapters."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorplug.errors import OptionError
from tensorplug.gguf import ModelFile, open_gguf
from tensorplug_llm.models import find_model


@dataclass(frozen=True, slots=True)
class LoRA:
    """An adapter: a GGUF file, or a folder of PEFT; `scale` multiplies its own."""

    path: Path
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "LoRA":
        """Read FILE[:SCALE]. Raises OptionError."""
        path, colon, scale = text.rpartition(":")
        if not colon or Path(text).exists():
            return cls(Path(text))
        try:
            found = float(scale)
        except ValueError:
            found = math.nan
        if not math.isfinite(found):
            raise OptionError(
                f"--lora: {text!r} is not there, and {scale!r} is not a scale; give FILE or "
                "FILE:SCALE, such as adapter.gguf:0.5"
            )
        return cls(Path(path), found)


def open_model(model: str | os.PathLike[str], lora: Sequence[LoRA] = ()) -> ModelFile:
    """Open a GGUF file or the folder of a model of Hugging Face, with adapters.

    `model` is a path, or a string that `find_model` knows, such as `hf:ORG/REPO`. Raises
    OptionError, FormatError.
    """
    file = _open(find_model(model) if isinstance(model, str) else Path(model))
    if not lora:
        return file
    from tensorplug_llm.lora import Adapted  # noqa: PLC0415 - seldom asked for

    try:
        return Adapted(file, lora)
    except BaseException:
        file.close()
        raise


def _open(path: Path) -> ModelFile:
    if not path.is_dir():
        return open_gguf(path)
    from tensorplug_llm.folders import open_folder  # noqa: PLC0415 - most models are files

    return open_folder(path)
