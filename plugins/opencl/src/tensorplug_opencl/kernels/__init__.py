"""The kernels of this backend: its own, and the shared ones that it adopts."""

from tensorplug_simt import families
from tensorplug_simt.lowering import SHARED

__all__ = ["LOWERINGS", "families"]

LOWERINGS = dict(SHARED)
