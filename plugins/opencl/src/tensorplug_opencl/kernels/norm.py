"""Rows divided by a statistic of themselves."""

from tensorplug.fusion import Group
from tensorplug.tensor import Tensor
from tensorplug_opencl.kernels.table import GROUPS, OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_row
from tensorplug_simt.lowering import lowers, lowers_group
from tensorplug_simt.own import norm as shared
from tensorplug_simt.program import Kernel, Program

NORM, GROUP_NORM, NORM_FUSED = shared.kernels("tensorplug_opencl:kernels/norm.cl")


@lowers("norm", "rms_norm", "l2_norm", table=OWN)
def norm(node: Tensor, facts: Facts) -> Program:
    """Rows less their mean (norm), over the root of their mean square or over their length."""
    return _program(NORM, shared.norm(node), facts)


@lowers("group_norm", table=OWN)
def group_norm(node: Tensor, facts: Facts) -> Program:
    """Groups of channels, each normalised as one row."""
    return _program(GROUP_NORM, shared.group_norm(node), facts)


@lowers_group("norm_mul", "add_norm", table=GROUPS)
def norm_fused(group: Group, facts: Facts) -> Program:
    """A norm with the sum before it, or the factor and the summand after it."""
    return _program(NORM_FUSED, shared.fused(group), facts)


def _program(kernel: Kernel, rows: shared.Rows, facts: Facts) -> Program:
    launch = per_row(
        kernel,
        rows.places,
        rows.rows,
        facts,
        defines=rows.defines,
        numbers=rows.numbers,
    )
    return Program((launch,))
