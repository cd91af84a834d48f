"""The kernels of this backend: `KERNELS` names its own; all other ops run on the shared ones."""

from tensorplug_cuda.kernels import attention, columns, matmul, roundings, route
from tensorplug_simt.own.few import groups
from tensorplug_simt.table import Kernels

KERNELS = Kernels(
    own={
        "mul_mat": matmul.mul_mat,
        "mul_mat_id": matmul.mul_mat_id,
        "flash_attn_ext": attention.flash_attn_ext,
    },
    own_groups={
        **groups(columns.follow, columns.gate),
        "topk_moe": route.route,
        "topk_moe_late": route.route_late,
    },
    group_scratch=columns.group_scratch,
    rounding=roundings.declared,
)
