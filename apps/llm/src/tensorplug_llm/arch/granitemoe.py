"""Granite 3 with experts (IBM 2024, model card granite-3.0-3b-a800m-base)."""

from tensorplug.gguf import ModelFile
from tensorplug_llm.arch import passes, tables
from tensorplug_llm.arch.architecture import Architecture
from tensorplug_llm.arch.granite import read_granite
from tensorplug_llm.hparams import HParams


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of a Granite model with experts."""
    return read_granite(file, "granitemoe")


GRANITEMOE = Architecture("granitemoe", read, tables.block_tensors, passes.pre_norm)
