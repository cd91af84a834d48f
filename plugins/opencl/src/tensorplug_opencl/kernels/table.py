"""The lowerings to kernels of this backend's own, by op."""

from tensorplug_simt.lowering import Lowering

OWN: dict[str, Lowering] = {}
"""Comes before the shared lowerings."""
