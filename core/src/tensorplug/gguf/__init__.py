"""Reader of GGUF files, versions 2 and 3: header and metadata are checked, data is mapped."""

from tensorplug.gguf.file import GGUFFile, open_gguf
from tensorplug.gguf.metadata import Metadata
from tensorplug.gguf.tensors import GGUFTensor

__all__ = ["GGUFFile", "GGUFTensor", "Metadata", "open_gguf"]
