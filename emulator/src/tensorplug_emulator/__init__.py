"""Runs kernels for GPUs on the processor. What passes here was *emulated*, not run on a GPU."""

from tensorplug_emulator.compiler import missing
from tensorplug_emulator.library import CUDA_LANGUAGE, Language, Library, Memory, Order, library

__all__ = ["CUDA_LANGUAGE", "Language", "Library", "Memory", "Order", "library", "missing"]
