"""NVIDIA's compiler, for which the emulator's stands in."""

from cupy._kernels import compile_using_nvrtc
from cupy.cuda.errors import CompileException

__all__ = ["CompileException", "compile_using_nvrtc"]
