"""The kernels of this backend: its own, by family, and the shared ones that it adopts."""

from tensorplug_metal.kernels import attention, matmul
from tensorplug_metal.kernels.table import GROUPS, OWN
from tensorplug_simt import families
from tensorplug_simt.lowering import SHARED, SHARED_GROUPS
from tensorplug_simt.own.chains import CHAINS

__all__ = [
    "GROUPS",
    "LOWERINGS",
    "attention",
    "families",
    "matmul",
]

LOWERINGS = {**SHARED, **OWN}
GROUPS |= {**SHARED_GROUPS, **CHAINS}
