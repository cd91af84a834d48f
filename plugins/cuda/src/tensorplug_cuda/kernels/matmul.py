"""Products of matrices: `mul_mat`, `mul_mat_id`, `out_prod`."""

from tensorplug.tensor import Tensor
from tensorplug_cuda.kernels import experts
from tensorplug_cuda.kernels.columns import TEXT, few, takes_few
from tensorplug_cuda.kernels.library import by_library
from tensorplug_cuda.kernels.mma import by_tensor_cores
from tensorplug_cuda.kernels.table import OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import lowers
from tensorplug_simt.own.product import (
    REPEATS,
    expert_kernel,
    expert_product,
    lower_out_prod,
    need_product,
    product,
    product_kernel,
    repeats,
)
from tensorplug_simt.program import Kernel, Program, blocks_of, launch

PRODUCT = product_kernel(TEXT)
EXPERT_PRODUCT = expert_kernel(TEXT)
TILED_PRODUCT = Kernel("tiled_product", TEXT, ("w", "x", "y"), ("y",), REPEATS)

lower_out_prod(TEXT, OWN)


@lowers("mul_mat", table=OWN)
def mul_mat(node: Tensor, facts: Facts) -> Program:
    """y[n, m] = sum over k of w[k, n] * x[k, m]."""
    w, x = node.sources
    need_product(node)
    if takes_few(node):
        return few(node, facts)
    if not (w.size and x.size and node.size):
        return product(PRODUCT, node, facts)
    program = by_library(node, facts) or by_tensor_cores(node, facts)
    if program is not None:
        return program
    side = experts.SIDE
    tiled = launch(
        TILED_PRODUCT,
        {"w": w, "x": x, "y": node},
        groups=(blocks_of(w.ne[1], side), blocks_of(x.ne[1], side), node.ne[2] * node.ne[3]),
        local=(experts.TILE_ITEMS,),
        numbers=repeats(w, x),
    )
    return Program((tiled,))


@lowers("mul_mat_id", table=OWN)
def mul_mat_id(node: Tensor, facts: Facts) -> Program:
    """y[:, i, t] = w[:, :, ids[i, t]] applied to x[:, i mod ne[1], t]."""
    w, x = node.sources[:2]
    need_product(node)
    if takes_few(node):
        return few(node, facts)
    if not (w.size and x.size and node.size):
        return expert_product(EXPERT_PRODUCT, node, facts)
    return experts.tiles(node)
