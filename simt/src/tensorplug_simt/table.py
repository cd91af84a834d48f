"""`Kernels`: the one declaration of which kernels a backend computes with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from tensorplug_simt import families  # fills the shared tables
from tensorplug_simt.lowering import SHARED, SHARED_GROUPS, GroupLowering, Lowering

__all__ = ["PORTABLE", "Kernels", "families"]


@dataclass(frozen=True)
class Kernels:
    """The lowerings of a backend: `own` by op, `own_groups` by fusion pattern, then the shared.

    `own_groups` may name lowerings of this distribution too, such as `own.chains.CHAINS`.
    """

    own: Mapping[str, Lowering] = field(default_factory=lambda: MappingProxyType({}))
    own_groups: Mapping[str, GroupLowering] = field(default_factory=lambda: MappingProxyType({}))

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
