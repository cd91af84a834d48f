"""`Facts`: what a lowering may know of a device."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Facts:
    """Abilities and limits of one device. Sizes are bytes.

    `wide` devices (processors) run one work item at a time and want long vectors in it: a row is
    one item's work. On others a row is the work of a group. `subgroup` is the number of items that
    exchange values without barriers, 0 where there is no such thing.
    """

    wide: bool
    max_group: int = 256
    local_memory: int = 32 * 1024
    subgroup: int = 0
    fp16: bool = False
    fp64: bool = False
    int_dot: bool = False
    units: int = 1

    @property
    def row_group(self) -> int:
        """Work items that share one row: a power of two."""
        return 1 if self.wide else min(self.max_group, 128)

    @property
    def flat_group(self) -> int:
        """Work items of a group where each has its own element: a power of two."""
        return 64 if self.wide else min(self.max_group, 256)
