"""Gated linear units, the gradient of silu, and embeddings of time steps."""

from math import log

from tensorplug.device import Tensor
from tensorplug.ops.glu import GLU
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.elements import COUNT, TEXT, alike
from tensorplug_simt.grids import per_element, regions_of
from tensorplug_simt.lowering import lowers, need_types, number
from tensorplug_simt.program import Kernel, Program, Region, region

_Y = ("y",)
GATED = Kernel("gated", TEXT, ("x", "gate", "y"), _Y, (COUNT,))
GATED_OAI = Kernel(
    "gated_oai", TEXT, ("x", "gate", "y"), _Y, (COUNT, ("alpha", "float"), ("limit", "float"))
)
SILU_BACK = Kernel("silu_back", TEXT, ("grad", "x", "y"), _Y, (COUNT,))
TIMESTEPS = Kernel(
    "timesteps", TEXT, ("x", "y"), _Y, (COUNT, ("half_dim", "int"), ("rate", "float"))
)

ACTIVATIONS = {name: "of_" + name.replace("glu", "lu") for name in GLU} | {"swiglu": "of_silu"}
"""The function that the kernel applies to the activated half."""


def _halves(node: Tensor) -> dict[str, Region]:
    """The half that is activated, the half that is plain, and the result."""
    x, *gate = node.sources
    if gate:
        return {"x": region(x), "gate": region(gate[0]), "y": region(node)}
    half = node.ne[0] * x.nb[0]
    first, second = (half, 0) if node.params["swapped"] else (0, half)
    return {
        "x": Region(x, x.dtype, node.ne, x.nb, first),
        "gate": Region(x, x.dtype, node.ne, x.nb, second),
        "y": region(node),
    }


@lowers(*GLU)
def glu(node: Tensor, facts: Facts) -> Program:
    """y = activation(x) * gate."""
    need_types(node)
    defines = {"FUNCTION": ACTIVATIONS[node.op]}
    return Program((alike(GATED, _halves(node), facts, defines=defines),))


@lowers("swiglu_oai")
def swiglu_oai(node: Tensor, facts: Facts) -> Program:
    """y = silu of the clamped x, times the clamped gate and 1."""
    need_types(node)
    numbers = {"alpha": number(node, "alpha"), "limit": number(node, "limit")}
    return Program((alike(GATED_OAI, _halves(node), facts, numbers=numbers),))


@lowers("silu_back")
def silu_back(node: Tensor, facts: Facts) -> Program:
    """Gradient of silu."""
    need_types(node)
    return Program((alike(SILU_BACK, regions_of(SILU_BACK, node), facts),))


@lowers("timestep_embedding")
def timestep_embedding(node: Tensor, facts: Facts) -> Program:
    """cos and sin of times, from fast to slow."""
    need_types(node)
    half, period = int(number(node, "dim")) // 2, number(node, "max_period")
    regions = regions_of(TIMESTEPS, node)
    numbers = {"half_dim": half, "rate": log(period)}
    return Program((per_element(TIMESTEPS, regions, node.size, facts, numbers=numbers),))
