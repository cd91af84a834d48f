"""The kernels of this backend: its own, by family, and the shared ones that it adopts."""

from tensorplug_cuda.kernels import attention, matmul, route, sort
from tensorplug_cuda.kernels.columns import ROOMY
from tensorplug_cuda.kernels.table import GROUPS, OWN
from tensorplug_simt import families
from tensorplug_simt.lowering import SHARED, SHARED_GROUPS
from tensorplug_simt.own.chains import CHAINS

__all__ = [
    "GROUPS",
    "LOWERINGS",
    "attention",
    "families",
    "matmul",
    "route",
    "sort",
]

LOWERINGS = {**SHARED, **ROOMY, **OWN}
GROUPS |= {**SHARED_GROUPS, **CHAINS}
