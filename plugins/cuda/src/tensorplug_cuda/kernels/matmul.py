"""Products of matrices: `mul_mat`, `mul_mat_id`."""

from tensorplug.device import Tensor
from tensorplug_cuda.kernels import experts, library, mma
from tensorplug_cuda.kernels.columns import few, takes_few
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.product import hadamard, need_product, product
from tensorplug_simt.program import Program


def mul_mat(node: Tensor, facts: Facts) -> Program:
    """y[n, m] = sum over k of w[k, n] * x[k, m]."""
    need_product(node)
    if transform := hadamard(node, facts):
        return transform
    if takes_few(node):
        return few(node, facts)
    if not (has_elements(node) and mma.takes(node, facts)):
        return product(node, facts)
    return (library.by_library if library.fits(node) else mma.by_tensor_cores)(node, facts)


def has_elements(node: Tensor) -> bool:
    """Whether there is something to multiply."""
    return all(tensor.size for tensor in (*node.sources[:2], node))


def has_tiles(node: Tensor) -> bool:
    """Whether a product is computed in tiles, one way or the other."""
    return has_elements(node) and not takes_few(node)


def mul_mat_id(node: Tensor, facts: Facts) -> Program:
    """y[:, i, t] = w[:, :, ids[i, t]] applied to x[:, i mod ne[1], t]."""
    need_product(node)
    if takes_few(node):
        return few(node, facts)
    if not has_elements(node):
        return product(node, facts)
    return (experts.by_tensor_cores if mma.takes(node, facts) else experts.tiles)(node, facts)
