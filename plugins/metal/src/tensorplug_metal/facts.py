"""Facts about a GPU, as Metal tells them."""

from dataclasses import dataclass, replace
from typing import Any

import Metal

from tensorplug_metal import system
from tensorplug_simt.dialects.metal import APPLE
from tensorplug_simt.facts import Facts

UNITS = 8
"""Metal does not tell how many cores a GPU has; the smallest of Apple's have seven or eight."""
FAMILY = 1000
"""Numbers of Apple's families start here: 1007 is the seventh, that of the M1."""
OLDEST, NEWEST = 7, 20
"""Families that are looked for. Those before the seventh have no matrices of simdgroups."""
KEEPS_PIPELINES = 9
"""From this family on drivers keep the pipelines that indirect commands name."""
RESIDENCY_SETS = (15, 0)
"""The first macOS with them."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Sizes are bytes; `family` is the highest of Apple's that it belongs to, or 0."""

    name: str
    registry_id: int
    family: int
    working_set: int
    """As much memory as Metal recommends to use at a time."""
    largest_buffer: int
    largest_group: int
    local_memory: int
    """Of one group."""

    @property
    def facts(self) -> Facts:
        """What lowerings may know of it."""
        return replace(
            APPLE, max_group=self.largest_group, local_memory=self.local_memory, units=UNITS
        )

    @property
    def keeps_pipelines(self) -> bool:
        """Whether a recording of indirect commands runs without setting their pipelines first."""
        return self.family >= KEEPS_PIPELINES

    def __str__(self) -> str:
        family = f"Apple family {self.family}, " if self.family else ""
        return f"{self.name}, {family}registry {self.registry_id:#x}"


def gpu(handle: Any) -> Gpu:
    """The facts of a device of Metal's."""
    families = [n for n in range(OLDEST, NEWEST) if handle.supportsFamily_(FAMILY + n)]
    return Gpu(
        name=str(handle.name()),
        registry_id=handle.registryID(),
        family=max(families, default=0),
        working_set=handle.recommendedMaxWorkingSetSize(),
        largest_buffer=handle.maxBufferLength(),
        largest_group=handle.maxThreadsPerThreadgroup().width,
        local_memory=handle.maxThreadgroupMemoryLength(),
    )


def has_residency_sets() -> bool:
    """Whether this macOS can be told which memory to keep where the GPU reaches it."""
    return system.version() >= RESIDENCY_SETS


def storage(*, private: bool) -> int:
    """The options of a buffer."""
    kind = Metal.MTLResourceStorageModePrivate if private else Metal.MTLResourceStorageModeShared
    return int(kind)
