"""`Kernels`: the one declaration of which kernels a backend computes with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from tensorplug.device import Rounding, Tensor
from tensorplug_simt import families  # fills the shared tables
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import SHARED, SHARED_GROUPS, GroupLowering, Lowering

__all__ = ["PORTABLE", "Kernels", "families"]


def no_scratch(_node: Tensor, _facts: Facts) -> int:
    """Groups need no more scratch memory than their last node does by itself."""
    return 0


def rounds_nothing(_node: Tensor, _facts: Facts) -> Rounding:
    """Kernels compute with the values that they are given."""
    return Rounding.NONE


@dataclass(frozen=True)
class Kernels:
    """The lowerings of a backend: `own` by op, `own_groups` by fusion pattern, then the shared.

    `own_groups` may name lowerings of this distribution too, such as `own.chains.CHAINS`. Their
    scratch memory lies behind the last node of the group. Memory is planned before groups are
    lowered, so `group_scratch` says of a node how many bytes any group that it ends may need.
    `rounding` says what the own kernel of a node rounds its operands to.
    """

    own: Mapping[str, Lowering] = field(default_factory=lambda: MappingProxyType({}))
    own_groups: Mapping[str, GroupLowering] = field(default_factory=lambda: MappingProxyType({}))
    group_scratch: Callable[[Tensor, Facts], int] = no_scratch
    rounding: Callable[[Tensor, Facts], Rounding] = rounds_nothing

    @cached_property
    def ops(self) -> Mapping[str, Lowering]:
        """All lowerings by op."""
        return {**SHARED, **self.own}

    @cached_property
    def groups(self) -> Mapping[str, GroupLowering]:
        """All lowerings by fusion pattern."""
        return {**SHARED_GROUPS, **self.own_groups}


PORTABLE = Kernels()
"""Those of this distribution only."""
