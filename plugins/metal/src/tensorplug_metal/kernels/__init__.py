"""The kernels of this backend: its own, by family, and the shared ones that it adopts."""

from tensorplug_metal.kernels import attention, matmul, norm, softmax, sort
from tensorplug_metal.kernels.table import GROUPS, OWN
from tensorplug_simt import families
from tensorplug_simt.lowering import SHARED
from tensorplug_simt.own.chains import CHAINS

__all__ = [
    "GROUPS",
    "LOWERINGS",
    "attention",
    "families",
    "matmul",
    "norm",
    "softmax",
    "sort",
]

LOWERINGS = {**SHARED, **OWN}
GROUPS |= CHAINS
