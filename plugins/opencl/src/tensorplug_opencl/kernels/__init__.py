"""The kernels of this backend: `KERNELS` names its own; all other ops run on the shared ones."""

from tensorplug_opencl.kernels import attention, matmul, sort
from tensorplug_simt.table import Kernels

KERNELS = Kernels(
    own={
        "mul_mat": matmul.mul_mat,
        "mul_mat_id": matmul.mul_mat,
        "flash_attn_ext": attention.flash_attn_ext,
        "argsort": sort.order,
        "top_k": sort.order,
    },
    rounding=matmul.rounding_of,
)
