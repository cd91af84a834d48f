"""Gradients of ops that work on rows; the loss, and its gradient; steps of an optimizer."""

from math import prod

from tensorplug.device import Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.elements import COUNT, steps
from tensorplug_simt.families.reduce import SUMS, parts, row_sums
from tensorplug_simt.grids import per_element, per_row, regions_of
from tensorplug_simt.lowering import lowers, need_types, number
from tensorplug_simt.program import Kernel, Program, region, scratch

TEXT = "tensorplug_simt:kernels/gradients.k"
STEPS = "tensorplug_simt:kernels/optimizer.k"

_Y = ("y",)
_SCALE, _EPS, _ROWS = ((name, "float") for name in ("scale", "eps", "rows"))
SOFT_MAX_BACK = Kernel("soft_max_back", TEXT, ("grad", "share", "y"), _Y, (_SCALE,), SUMS)
RMS_NORM_BACK = Kernel("rms_norm_back", TEXT, ("grad", "x", "y"), _Y, (_EPS,), SUMS)
LOSSES = Kernel("losses", TEXT, ("logits", "labels", "y"), _Y, parts=SUMS)
LOSSES_BACK = Kernel("losses_back", TEXT, ("grad", "logits", "labels", "y"), _Y, (_ROWS,), SUMS)
_CHANGED = ("m", "v", "y")
ADAMW = Kernel("adamw", STEPS, ("grad", "m", "v", "settings", "y"), _CHANGED, (COUNT,))
SGD = Kernel("sgd", STEPS, ("grad", "settings", "y"), _Y, (COUNT,))


@lowers("soft_max_back", "rms_norm_back")
def of_rows(node: Tensor, facts: Facts) -> Program:
    """scale * y * (grad - sum of y * grad), or grad less its part along x, over the length of x."""
    kernel, name = (SOFT_MAX_BACK, "scale") if "scale" in node.params else (RMS_NORM_BACK, "eps")
    return _rows(kernel, node, facts, **{name: number(node, name)})


def _rows(kernel: Kernel, node: Tensor, facts: Facts, **numbers: float) -> Program:
    """A group for each row of the result."""
    need_types(node)
    regions = {name: region(tensor) for name, tensor in regions_of(kernel, node).items()}
    defines = steps(regions)
    return Program(
        (per_row(kernel, regions, node.ne[1:], facts, defines=defines, numbers=numbers),)
    )


@lowers("cross_entropy_loss")
def cross_entropy_loss(node: Tensor, facts: Facts) -> Program:
    """The loss of each row, then their mean."""
    need_types(node)
    logits, labels = (region(t) for t in node.sources)
    _, a, b, c = logits.ne
    rows = a * b * c
    losses = parts(rows)
    regions = {"logits": logits, "labels": labels, "y": scratch(losses.dtype, (a, b, c, 1))}
    first = per_row(LOSSES, regions, (a, b, c), facts, defines=steps(regions))
    last = row_sums(losses, region(node), facts, factor=-1.0 / rows)
    return Program((first, last), scratch=losses.nbytes)


@lowers("cross_entropy_loss_back")
def cross_entropy_loss_back(node: Tensor, facts: Facts) -> Program:
    """grad * (softmax(logits) - labels) / rows."""
    return _rows(LOSSES_BACK, node, facts, rows=prod(node.ne[1:]))


@lowers("opt_step_adamw", "opt_step_sgd")
def optimised(node: Tensor, facts: Facts) -> Program:
    """A step of AdamW or of gradient descent; the result lies over the weights."""
    need_types(node)
    kernel = ADAMW if node.op == "opt_step_adamw" else SGD
    regions = dict(zip(kernel.buffers, (*node.sources[1:], node), strict=True))
    return Program((per_element(kernel, regions, node.size, facts),))
