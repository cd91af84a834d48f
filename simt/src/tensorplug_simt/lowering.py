"""From nodes to programs: tables of functions by op."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from tensorplug.device import Group, Refusal, Tensor
from tensorplug.dtypes import BF16, F16, F32, DType
from tensorplug_simt.facts import Facts
from tensorplug_simt.program import Program, Region

Lowering = Callable[[Tensor, Facts], Program]
"""From a node to launches. Raises NoKernel where there is no kernel for it."""

GroupLowering = Callable[[Group, Facts], Program]
"""From a group of nodes to launches. Raises NoKernel."""

SHARED: dict[str, Lowering] = {}
"""The shared lowerings by op. A backend's own table comes before it."""

SHARED_GROUPS: dict[str, GroupLowering] = {}
"""The shared lowerings of groups by fusion pattern."""

LIMIT = 2**31 - 1
"""Counts beyond this do not fit the kernels' integers."""

MOST: Mapping[str, int] = MappingProxyType({"int": LIMIT, "uint": 2**32 - 1})
"""The largest of the integers that kernels are given, by their kinds."""

SMALL_FLOATS: frozenset[DType] = frozenset({F32, F16, BF16})
"""The types that most kernels load and store."""

F = TypeVar("F", bound=Lowering)
G = TypeVar("G", bound=GroupLowering)


class NoKernel(Exception):
    """A node for which there is no kernel; the text is the reason, without the op's name."""


def lowers(*ops: str, table: dict[str, Lowering] = SHARED) -> Callable[[F], F]:
    """Enter a function into `table` as the lowering of `ops`."""

    def enter(function: F) -> F:
        for op in ops:
            table[op] = function
        return function

    return enter


def lower(node: Tensor, facts: Facts, table: Mapping[str, Lowering] = SHARED) -> Program | Refusal:
    """The program of one node that is not a view, or why there is none."""
    if not node.size:
        return Program(())
    lowering = table.get(node.op)
    if lowering is None:
        return Refusal(f"no kernel for {node.op}")
    try:
        for tensor in (node, *node.sources):
            if tensor.size > LIMIT:
                raise NoKernel(f"{tensor} has more than {LIMIT} elements")
        return _checked(lowering(node, facts))
    except NoKernel as reason:
        return Refusal(f"{node.op}: {reason}")


def _checked(program: Program) -> Program:
    """The program. Raises NoKernel where a number does not fit the kernel's integers."""
    for launch in program.launches:
        for name, kind in launch.kernel.numbers:
            most = MOST.get(kind)
            if most is not None and not -LIMIT <= launch.numbers[name] <= most:
                raise NoKernel(f"{name}={launch.numbers[name]} is beyond {most}")
    return program


def lowers_group(
    *patterns: str, table: dict[str, GroupLowering] = SHARED_GROUPS
) -> Callable[[G], G]:
    """Enter a function into `table` as the lowering of groups of `patterns`."""

    def enter(function: G) -> G:
        for pattern in patterns:
            table[pattern] = function
        return function

    return enter


def lower_group(
    group: Group, facts: Facts, table: Mapping[str, GroupLowering]
) -> Program | Refusal:
    """The program of a group of nodes, or the reason why there is none."""
    lowering = table.get(group.pattern.name)
    if lowering is None:
        return Refusal(f"no kernel for {group.pattern.name}")
    try:
        return _checked(lowering(group, facts))
    except NoKernel as reason:
        return Refusal(f"{group.pattern.name}: {reason}")


def need_types(node: Tensor, known: frozenset[DType] = SMALL_FLOATS) -> None:
    """Raise NoKernel unless the types of `node` and its sources are all in `known`."""
    for tensor in (node, *node.sources):
        need_type(tensor, known)


def need_type(tensor: Tensor | Region, known: frozenset[DType] = SMALL_FLOATS) -> None:
    """Raise NoKernel unless the type of `tensor` is in `known`."""
    if tensor.dtype not in known:
        raise NoKernel(f"no kernel for {tensor.dtype.name}")


def number(node: Tensor, name: str) -> float:
    """The numeric parameter `name` of a node."""
    value = node.params[name]
    if not isinstance(value, int | float):
        raise NoKernel(f"parameter {name} is {value!r}, no number")
    return value
