"""Chains of sums or products, and the snake activation, in one pass."""

from tensorplug.dtypes import F32
from tensorplug.fusion import Group
from tensorplug.patterns import LONGEST_CHAIN
from tensorplug.tensor import Tensor
from tensorplug_metal.kernels.table import GROUPS
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element
from tensorplug_simt.lowering import NoKernel, lowers_group, need_type
from tensorplug_simt.program import Kernel, Program

TEXT = "tensorplug_metal:kernels/chain.metal"
_ADDED = tuple(f"b{i}" for i in range(1, LONGEST_CHAIN + 1))
_COUNT = (("count", "uint"),)

CHAIN = Kernel("chain", TEXT, ("a", *_ADDED, "y"), ("y",), _COUNT)
SNAKE = Kernel("snake", TEXT, ("x", "a", "inv_b", "y"), ("y",), _COUNT)


@lowers_group("add_chain", "mul_chain", table=GROUPS)
def chain(group: Group, facts: Facts) -> Program:
    """a + b1 + ... + bn, or the product, n from 2 to 8."""
    names = [name for name in ("a", *_ADDED) if name in group]
    places = {**{name: group[name] for name in names}, "y": group.last}
    _need_floats(places)
    kind = {"FACTORS": 1} if group.last.op == "mul" else {}
    defines = {"COUNT": len(names) - 1, **kind}
    return Program((per_element(CHAIN, places, group.last.size, facts, defines=defines),))


@lowers_group("snake", table=GROUPS)
def snake(group: Group, facts: Facts) -> Program:
    """x + sin(a * x) ** 2 * inv_b."""
    places = {**{name: group[name] for name in ("x", "a", "inv_b")}, "y": group.last}
    _need_floats(places)
    return Program((per_element(SNAKE, places, group.last.size, facts),))


def _need_floats(places: dict[str, Tensor]) -> None:
    """Raise NoKernel for other types, and for results smaller than what they are made of."""
    result = places["y"]
    for tensor in places.values():
        need_type(tensor, frozenset({F32}))
        if any(many % few for many, few in zip(result.ne, tensor.ne, strict=True)):
            raise NoKernel(f"no kernel for a result of {result.shape} with {tensor.shape}")
