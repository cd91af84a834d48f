"""The lowerings to kernels of this backend's own."""

from tensorplug_simt.lowering import Lowering

OWN: dict[str, Lowering] = {}
"""By op; comes before the shared lowerings."""
