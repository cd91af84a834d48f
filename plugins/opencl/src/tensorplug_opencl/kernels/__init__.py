"""The kernels of this backend: its own, by family, and the shared ones that it adopts."""

from tensorplug_opencl.kernels import attention, matmul, sort
from tensorplug_opencl.kernels.table import OWN
from tensorplug_simt import families
from tensorplug_simt.lowering import SHARED, SHARED_GROUPS

__all__ = ["GROUPS", "LOWERINGS", "attention", "families", "matmul", "sort"]

LOWERINGS = {**SHARED, **OWN}
GROUPS = SHARED_GROUPS
