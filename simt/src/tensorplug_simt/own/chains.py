"""Nodes after each other in one pass: an item for each element, or a group for some heads."""

from tensorplug.device import Group, Tensor
from tensorplug.dtypes import F32
from tensorplug.fusion.library import LONGEST_CHAIN, MOST_EXPERTS
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.elements import COUNT, alike
from tensorplug_simt.families.elements import TEXT as ELEMENTWISE
from tensorplug_simt.families.elementwise import OPERATORS, UNARY
from tensorplug_simt.families.gates import GATED
from tensorplug_simt.families.linear_attention import keep_states
from tensorplug_simt.families.rope import norm_rope
from tensorplug_simt.families.ssm import TEXT as SSM
from tensorplug_simt.grids import per_element
from tensorplug_simt.lowering import (
    SMALL_FLOATS,
    GroupLowering,
    NoKernel,
    lowers_group,
    need_type,
    number,
)
from tensorplug_simt.program import Kernel, Program

TEXT = "tensorplug_simt:kernels/chains.k"
_ADDED = tuple(f"b{i}" for i in range(1, LONGEST_CHAIN + 1))
_CAP = ("inner", "inner_bias", "outer", "outer_bias")

CHAIN = Kernel("chain", TEXT, ("a", *_ADDED, "y"), ("y",), (COUNT,))
SNAKE = Kernel("snake", TEXT, ("x", "a", "inv_b", "y"), ("y",), (COUNT,))
COMBINE = Kernel("combine", TEXT, ("experts", "weights", "y"), ("y",), (COUNT,))
SOFTCAP = Kernel(
    "softcap", ELEMENTWISE, ("x", "y"), ("y",), (COUNT, *((name, "float") for name in _CAP))
)

CONV = Kernel("ssm_conv", SSM, ("x", "weights", "bias", "y"), ("y",), (COUNT,))

CHAINS: dict[str, GroupLowering] = {"rms_norm_rope": norm_rope, "gated_delta_net_cpy": keep_states}
"""By fusion pattern; a backend whose rows are the work of groups puts them into its own table."""


@lowers_group("add_chain", "mul_chain", table=CHAINS)
def chain(group: Group, facts: Facts) -> Program:
    """a + b1 + ... + bn, or the product, n from 2 to 8."""
    names = [name for name in ("a", *_ADDED) if name in group]
    regions = {**{name: group[name] for name in names}, "y": group.last}
    _need_sources_that_fit(regions)
    terms = " ".join(f"WITH({name})" for name in names[1:])
    defines = {"TERMS": terms, "OPERATOR": OPERATORS[group.last.op]}
    return Program((per_element(CHAIN, regions, group.last.size, facts, defines=defines),))


@lowers_group("snake", table=CHAINS)
def snake(group: Group, facts: Facts) -> Program:
    """x + sin(a * x) ** 2 * inv_b."""
    regions = {**{name: group[name] for name in ("x", "a", "inv_b")}, "y": group.last}
    _need_sources_that_fit(regions)
    return Program((per_element(SNAKE, regions, group.last.size, facts),))


@lowers_group("activation_mul", table=CHAINS)
def activation_mul(group: Group, facts: Facts) -> Program:
    """f(x) * other."""
    regions = {"x": group["x"], "gate": group["other"], "y": group.last}
    _need_one_shape(regions)
    defines = {"FUNCTION": f"of_{group['active'].op}"}
    return Program((alike(GATED, regions, facts, defines=defines),))


@lowers_group("relu_sqr", table=CHAINS)
def relu_sqr(group: Group, facts: Facts) -> Program:
    """relu(x) ** 2."""
    regions = {"x": group["x"], "y": group.last}
    _need_one_shape(regions)
    return Program((alike(UNARY, regions, facts, defines={"FUNCTION": "of_relu_sqr"}),))


@lowers_group("softcap", table=CHAINS)
def softcap(group: Group, facts: Facts) -> Program:
    """A scaled tanh of what was scaled before."""
    regions = {"x": group["x"], "y": group.last}
    _need_one_shape(regions)
    scales = [(group[name], key) for name in ("small", "y") for key in ("scale", "bias")]
    numbers = {name: number(*of) for name, of in zip(_CAP, scales, strict=True)}
    return Program((alike(SOFTCAP, regions, facts, numbers=numbers),))


@lowers_group("moe_combine", table=CHAINS)
def combine(group: Group, facts: Facts) -> Program:
    """The sum of each token's experts, weighted."""
    experts, weights, y = group["experts"], group["weights"], group.last
    taken = sum(f"v{i}" in group for i in range(MOST_EXPERTS))
    if experts.ne[3] != 1 or experts.ne[1] != taken or y.ne != (experts.ne[0], experts.ne[2], 1, 1):
        raise NoKernel(f"no kernel for {taken} of the rows of {experts}")
    regions = {"experts": experts, "weights": weights, "y": y}
    for tensor in regions.values():
        need_type(tensor, frozenset({F32}))
    return Program((per_element(COMBINE, regions, y.size, facts),))


@lowers_group("ssm_conv_silu", table=CHAINS)
def conv(group: Group, facts: Facts) -> Program:
    """silu of a convolution over time, perhaps with a bias."""
    regions = {"x": group["x"], "weights": group["kernel"], "y": group.last}
    if "bias" in group:
        regions["bias"] = group["bias"]
    for tensor in regions.values():
        need_type(tensor, frozenset({F32}))
    return Program((per_element(CONV, regions, group.last.size, facts, defines={"SILU": 1}),))


def _need_sources_that_fit(regions: dict[str, Tensor]) -> None:
    """Raise NoKernel for other types, and for results smaller than what they are made of."""
    result = regions["y"]
    for tensor in regions.values():
        need_type(tensor, frozenset({F32}))
        if any(many % few for many, few in zip(result.ne, tensor.ne, strict=True)):
            raise NoKernel(f"no kernel for a result of {result.shape} with {tensor.shape}")


def _need_one_shape(regions: dict[str, Tensor]) -> None:
    """Raise NoKernel for other types, and for sources that come round."""
    for tensor in regions.values():
        need_type(tensor, SMALL_FLOATS)
        if tensor.ne != regions["y"].ne:
            raise NoKernel(f"no kernel for a result of {regions['y'].shape} with {tensor.shape}")
