"""Rows divided by a statistic of themselves."""

from tensorplug_metal.kernels.table import GROUPS, OWN
from tensorplug_simt.grids import group_size
from tensorplug_simt.own.norm import lower_norms

lower_norms("tensorplug_metal:kernels/norm.metal", OWN, GROUPS, group_size)
