"""Triangular systems."""

from tensorplug.device import Tensor
from tensorplug.dtypes import F32
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import regions_of
from tensorplug_simt.lowering import lowers, need_types
from tensorplug_simt.program import Kernel, Program, blocks_of, launch

SOLVE_TRI = Kernel("solve_tri", "tensorplug_simt:kernels/solve.k", ("a", "b", "y"), ("y",))
_TOGETHER = 32
"""Columns of a group."""


@lowers("solve_tri")
def solve_tri(node: Tensor, facts: Facts) -> Program:
    """The columns x for which a x = b, with a lower triangle."""
    need_types(node, frozenset({F32}))
    together = min(_TOGETHER, facts.max_group)
    groups = (blocks_of(node.ne[0], together), node.ne[2], node.ne[3])
    regions = regions_of(SOLVE_TRI, node)
    return Program((launch(SOLVE_TRI, regions, groups=groups, local=(together,)),))
