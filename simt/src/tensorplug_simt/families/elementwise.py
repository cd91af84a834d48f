"""Elements one by one: scale, sums and products with broadcasting."""

from collections.abc import Mapping
from types import MappingProxyType

from tensorplug.tensor import Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element
from tensorplug_simt.lowering import lowers, need_types
from tensorplug_simt.program import Kernel, Program

TEXT = "tensorplug_simt:kernels/elementwise.k"

SCALE = Kernel(
    "scale", TEXT, ("x", "y"), ("y",), (("count", "uint"), ("scale", "float"), ("bias", "float"))
)
BINARY = Kernel("binary", TEXT, ("a", "b", "y"), ("y",), (("count", "uint"),))

OPERATORS: Mapping[str, str] = MappingProxyType({"add": "+", "sub": "-", "mul": "*", "div": "/"})


@lowers("scale")
def scale(node: Tensor, facts: Facts) -> Program:
    """y = scale * x + bias."""
    need_types(node)
    (x,) = node.sources
    defines = {"FLAT": 1} if x.is_contiguous and node.is_contiguous else {}
    numbers = {"scale": node.params["scale"], "bias": node.params["bias"]}
    return Program(
        (per_element(SCALE, {"x": x, "y": node}, node.size, facts, defines=defines, **numbers),)
    )


@lowers("add", "sub", "mul", "div")
def binary(node: Tensor, facts: Facts) -> Program:
    """y = a op repeat(b)."""
    need_types(node)
    a, b = node.sources
    defines: dict[str, int | str] = {"OPERATOR": OPERATORS[node.op]}
    if all(t.is_contiguous for t in (a, b, node)):
        if a.ne == b.ne:
            defines |= {"FLAT": 1, "SAME": 1}
        elif b.rows == 1 and b.ne[0] == a.ne[0]:
            defines["FLAT"] = 1
    places = {"a": a, "b": b, "y": node}
    return Program((per_element(BINARY, places, node.size, facts, defines=defines),))
