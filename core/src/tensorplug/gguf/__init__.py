"""Reads GGUF files, versions 2 and 3: opened lazily, checked wholly, tensor data never copied."""

from tensorplug.gguf.file import GGUFFile, open_gguf
from tensorplug.gguf.metadata import Metadata
from tensorplug.gguf.tensors import GGUFTensor

__all__ = ["GGUFFile", "GGUFTensor", "Metadata", "open_gguf"]
