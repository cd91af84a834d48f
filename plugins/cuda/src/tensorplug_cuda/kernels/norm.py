"""Rows divided by a statistic of themselves."""

from tensorplug_cuda.kernels.table import GROUPS, OWN
from tensorplug_simt.grids import group_size
from tensorplug_simt.own.norm import lower_norms

lower_norms("tensorplug_cuda:kernels/norm.cu", OWN, GROUPS, group_size)
