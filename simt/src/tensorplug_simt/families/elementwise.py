"""Elements one by one: functions of one element, arithmetic with broadcasting, with constants."""

from collections.abc import Mapping
from types import MappingProxyType

from tensorplug.device import Tensor
from tensorplug.ops.unary import UNARY as FUNCTIONS
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.elements import COUNT, TEXT, alike
from tensorplug_simt.families.encode import TEXT as BLOCKS
from tensorplug_simt.families.encode import need_encoder
from tensorplug_simt.grids import per_element, regions_of
from tensorplug_simt.lowering import NoKernel, lowers, need_type, need_types, number
from tensorplug_simt.program import Kernel, Program

_XY, _Y = ("x", "y"), ("y",)
UNARY = Kernel("unary", TEXT, _XY, _Y, (COUNT,))
SCALE = Kernel("scale", TEXT, _XY, _Y, (COUNT, ("scale", "float"), ("bias", "float")))
CONSTANT = Kernel("with_constants", TEXT, _XY, _Y, (COUNT, ("c0", "float"), ("c1", "float")))
XIELU_NUMBERS = ("alpha_n", "alpha_p", "beta", "eps")
XIELU = Kernel("xielu", TEXT, _XY, _Y, (COUNT, *((name, "float") for name in XIELU_NUMBERS)))
BINARY = Kernel("binary", TEXT, ("a", "b", "y"), _Y, (COUNT,))
BLOCKS_ADDED = Kernel("blocks_added", BLOCKS, ("a", "b", "y"), _Y, (COUNT,), rounds_each_step=True)
EXPERTS_ADDED = Kernel("experts_added", TEXT, ("a", "b", "ids", "y"), _Y, (COUNT,))
ARANGE = Kernel("arange", TEXT, _Y, _Y, (COUNT, ("start", "float"), ("step", "float")))
MASKED_INF = Kernel("masked_inf", TEXT, _XY, _Y, (COUNT, ("n_past", "int")))

OPERATORS: Mapping[str, str] = MappingProxyType(
    {"add": "+", "add1": "+", "sub": "-", "mul": "*", "div": "/"}
)
CONSTANTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"clamp": ("min", "max"), "leaky_relu": ("slope",), "fill": ("value",)}
)
"""The parameters that the kernel takes as c0 and c1."""


@lowers(*FUNCTIONS)
def unary(node: Tensor, facts: Facts) -> Program:
    """y = f(x)."""
    need_types(node)
    defines = {"FUNCTION": f"of_{node.op}"}
    return Program((alike(UNARY, regions_of(UNARY, node), facts, defines=defines),))


@lowers("scale")
def scale(node: Tensor, facts: Facts) -> Program:
    """y = scale * x + bias."""
    need_types(node)
    numbers = {"scale": number(node, "scale"), "bias": number(node, "bias")}
    return Program((alike(SCALE, regions_of(SCALE, node), facts, numbers=numbers),))


@lowers(*CONSTANTS)
def constant(node: Tensor, facts: Facts) -> Program:
    """y = f(x, constants)."""
    need_types(node)
    c0, c1 = (*(number(node, name) for name in CONSTANTS[node.op]), 0.0)[:2]
    regions, numbers = regions_of(CONSTANT, node), {"c0": c0, "c1": c1}
    defines = {"FUNCTION": f"of_{node.op}"}
    return Program((alike(CONSTANT, regions, facts, defines=defines, numbers=numbers),))


@lowers("xielu")
def xielu(node: Tensor, facts: Facts) -> Program:
    """y = xielu(x)."""
    need_types(node)
    numbers = {name: number(node, name) for name in XIELU_NUMBERS}
    return Program((alike(XIELU, regions_of(XIELU, node), facts, numbers=numbers),))


@lowers(*OPERATORS)
def binary(node: Tensor, facts: Facts) -> Program:
    """y = a op repeat(b); a sum may be of blocks, which are encoded again."""
    a, b = node.sources
    need_type(b)
    if a.splits_blocks:
        raise NoKernel("blocks that a transposition would split")
    if not a.dtype.is_block:
        need_type(a)
    regions = regions_of(BINARY, node)
    if node.dtype.is_block:
        need_encoder(node.dtype)
        blocks = node.size // node.dtype.block
        return Program((per_element(BLOCKS_ADDED, regions, blocks, facts),))
    need_type(node)
    defines: dict[str, int | str] = {"OPERATOR": OPERATORS[node.op]}
    if 1 < b.ne[0] < a.ne[0]:
        defines["WRAP"] = 1
    return Program((alike(BINARY, regions, facts, defines=defines),))


@lowers("add_id")
def add_id(node: Tensor, facts: Facts) -> Program:
    """y[:, i, j] = a[:, i, j] + b[:, ids[i, j]]."""
    for tensor in node.sources[:2]:
        need_type(tensor)
    regions = regions_of(EXPERTS_ADDED, node)
    return Program((alike(EXPERTS_ADDED, regions, facts, indices=True),))


@lowers("arange")
def arange(node: Tensor, facts: Facts) -> Program:
    """y[i] = start + i * step."""
    start, step = number(node, "start"), number(node, "step")
    return Program((per_element(ARANGE, {"y": node}, node.size, facts, start=start, step=step),))


@lowers("diag_mask_inf")
def diag_mask_inf(node: Tensor, facts: Facts) -> Program:
    """Minus infinity right of diagonal n_past."""
    need_types(node)
    numbers = {"n_past": int(number(node, "n_past"))}
    regions = regions_of(MASKED_INF, node)
    return Program((alike(MASKED_INF, regions, facts, numbers=numbers, indices=True),))
