"""SmolLM3 (Hugging Face 2025, model card SmolLM3-3B): llama's blocks.

Queries and keys of every fourth layer know no positions.
"""

from dataclasses import replace

from tensorplug.gguf import ModelFile
from tensorplug_llm.arch import passes, tables
from tensorplug_llm.arch.architecture import Architecture
from tensorplug_llm.hparams import HParams, read_hparams

UNTURNED_EVERY = 4


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of a SmolLM3 model."""
    hp = read_hparams(file, "smollm3", rope_mode="normal")
    unturned = range(UNTURNED_EVERY - 1, hp.layers, UNTURNED_EVERY)
    return replace(hp, unturned_layers=frozenset(unturned))


SMOLLM3 = Architecture("smollm3", read, tables.block_tensors, passes.pre_norm)
