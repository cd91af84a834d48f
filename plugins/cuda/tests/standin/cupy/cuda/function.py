"""Programs and their functions."""

from cupy._kernels import Function, Module

__all__ = ["Function", "Module"]
