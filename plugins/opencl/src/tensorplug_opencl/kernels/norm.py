"""Rows divided by a statistic of themselves."""

from tensorplug_opencl.kernels.table import GROUPS, OWN
from tensorplug_simt.own.norm import lower_norms

lower_norms("tensorplug_opencl:kernels/norm.cl", OWN, GROUPS)
