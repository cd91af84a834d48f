"""Architectures of language models: hyper-parameters, tensors and graph of each.

One file for each, found by the entry points of `tensorplug_llm.architectures` and imported when a
file needs it. An author of another imports what is exported here.
"""

from tensorplug_llm.arch.architecture import Architecture, Inputs, Part, Pass, Slots
from tensorplug_llm.arch.registry import architecture, architecture_names, architecture_of
from tensorplug_llm.arch.tables import Expected

__all__ = [
    "Architecture",
    "Expected",
    "Inputs",
    "Part",
    "Pass",
    "Slots",
    "architecture",
    "architecture_names",
    "architecture_of",
]
