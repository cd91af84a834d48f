"""Files of weights: a reader of GGUF files, versions 2 and 3, and the way of tensors to devices."""

from tensorplug.gguf.file import GGUFFile, open_gguf, read_beginning
from tensorplug.gguf.metadata import Metadata
from tensorplug.gguf.modelfile import ModelFile
from tensorplug.gguf.tensorfile import FileSource, FileTensor, TensorFile, map_file
from tensorplug.gguf.weights import (
    Progress,
    WeightMemory,
    WeightMode,
    Weights,
    load_weights,
    weight_memory,
)

__all__ = [
    "FileSource",
    "FileTensor",
    "GGUFFile",
    "Metadata",
    "ModelFile",
    "Progress",
    "TensorFile",
    "WeightMemory",
    "WeightMode",
    "Weights",
    "load_weights",
    "map_file",
    "open_gguf",
    "read_beginning",
    "weight_memory",
]
