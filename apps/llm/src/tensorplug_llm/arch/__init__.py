"""Architectures of language models: hyper-parameters, tensors and graph of each."""

from tensorplug.errors import FormatError
from tensorplug.gguf import GGUFFile
from tensorplug_llm.arch.common import Architecture, Expected, Inputs, Part, Pass
from tensorplug_llm.arch.gemma3 import GEMMA3
from tensorplug_llm.arch.llama import LLAMA
from tensorplug_llm.arch.qwen import QWEN2, QWEN3

__all__ = ["ARCHITECTURES", "Architecture", "Expected", "Inputs", "Part", "Pass", "architecture_of"]

ARCHITECTURES = {a.name: a for a in (GEMMA3, LLAMA, QWEN2, QWEN3)}
"""By the name that `general.architecture` gives."""


def architecture_of(file: GGUFFile) -> Architecture:
    """The architecture of an open file. Raises FormatError with the names that are known."""
    name = file.require("general.architecture", str)
    if name not in ARCHITECTURES:
        raise FormatError(
            f"{file.path}: architecture {name[:40]!r} is not supported; use a model of "
            f"{', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]
