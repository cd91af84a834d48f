"""Close launches of one kernel that do not depend on each other, made into one launch.

A language model multiplies the same rows with several matrices, turns queries and keys, stores keys
and values: the same kernel several times over, and small work costs little more than its launch.
Where each product rounds its columns first, two kernels take turns, so launches pass one another.
A merged launch has the groups of all its parts one after the other along x, and a parameter block
with a part for each; see `source.source`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tensorplug.device import Buffer
from tensorplug.device.ranges import AddressSpace, Range
from tensorplug_simt.program import Grid, Kernel, Launch

LARGEST_BLOCK = 960
"""Bytes of a merged parameter block: OpenCL promises 1024 for all arguments of a kernel."""
MOST_PARTS = 4
"""The most launches in a merged one."""
BEHIND = 2
"""Candidates for merging: the last launch, or the one before if the next commutes with the last."""

Home = tuple[AddressSpace, int]
"""The memory in which a buffer lies, and the byte at which it starts there."""
Block = np.ndarray[tuple[int], np.dtype[np.void]]


@dataclass(frozen=True)
class Placed:
    """A launch, with the buffer of each region and the bytes from its start to the region.

    `homes` says where the buffers lie; without it each counts by itself.
    """

    launch: Launch
    buffers: tuple[Buffer, ...]
    offsets: tuple[int, ...]
    homes: tuple[Home, ...] = ()

    @property
    def named_offsets(self) -> dict[str, int]:
        """The offsets by the names of the kernel's buffers."""
        return dict(zip(self.launch.regions, self.offsets, strict=True))

    @cached_property
    def written(self) -> tuple[int, ...]:
        """Which of the regions are written."""
        writes = self.launch.kernel.writes
        return tuple(i for i, name in enumerate(self.launch.regions) if name in writes)

    @cached_property
    def ranges(self) -> tuple[Range, ...]:
        """The bytes of each region, where its buffer lies."""
        homes = self.homes or tuple((buffer, 0) for buffer in self.buffers)
        places = zip(homes, self.offsets, self.launch.regions.values(), strict=True)
        return tuple(
            Range(memory, *(start + at + edge for edge in region.bounds))
            for (memory, start), at, region in places
        )

    @property
    def touched(self) -> Iterator[tuple[Range, bool]]:
        """The bytes that the launch reads or writes, and whether it writes them.

        Scratch memory and bytes before first elements are among them.
        """
        for i, range_ in enumerate(self.ranges):
            if range_.start < range_.end:
                yield range_, i in self.written

    def writes_into(self, other: "Placed") -> bool:
        """Whether this writes what the other reads or writes."""
        return any(self.ranges[i].overlaps(theirs) for i in self.written for theirs in other.ranges)

    def disturbs(self, other: "Placed") -> bool:
        """Whether one of the two writes what the other reads or writes."""
        return self.writes_into(other) or other.writes_into(self)


def most_parts(kernel: Kernel) -> int:
    """How many launches of `kernel` fit one parameter block."""
    size = kernel.parameters.itemsize + np.dtype(np.int32).itemsize
    return min(MOST_PARTS, LARGEST_BLOCK // size)


def merged(placed: Iterable[Placed]) -> list[tuple[Placed, ...]]:
    """All launches, with close ones merged where possible; dependent launches keep their order."""
    found: list[tuple[Placed, ...]] = []
    for next_ in placed:
        at = _joined_by(found, next_)
        if at is None:
            found.append((next_,))
        else:
            found[at] = (*found[at], next_)
    return found


def _joined_by(found: Sequence[tuple[Placed, ...]], next_: Placed) -> int | None:
    """The index of the launch that `next_` joins; None where it stays a launch of its own."""
    for at in range(len(found) - 1, max(len(found) - 1 - BEHIND, -1), -1):
        if _may_join(found[at], next_):
            return at
        if any(part.disturbs(next_) for part in found[at]):
            return None
    return None


def _may_join(parts: tuple[Placed, ...], next_: Placed) -> bool:
    first, new = parts[0].launch, next_.launch
    return (
        new.kernel is first.kernel
        and len(parts) < most_parts(new.kernel)
        and new.local == first.local
        and new.groups[1:] == first.groups[1:]
        and all(a is b for a, b in zip(parts[0].buffers, next_.buffers, strict=True))
        and new.variant == first.variant
        and not any(part.disturbs(next_) for part in parts)
    )


def joined(parts: Sequence[Placed]) -> tuple[int, Block, Grid]:
    """How many parts the text of a launch of `parts` has, its parameter block and its groups.

    A single launch remains as it is: its text has 0 parts, as `source` says.
    """
    first = parts[0]
    if len(parts) == 1:
        return 0, first.launch.parameters(first.named_offsets), first.launch.groups
    return most_parts(first.launch.kernel), merged_parameters(parts), merged_groups(parts)


def merged_groups(parts: Sequence[Placed]) -> Grid:
    """The groups of a merged launch."""
    _, y, z = parts[0].launch.groups
    return (sum(part.launch.groups[0] for part in parts), y, z)


def merged_parameters(parts: Sequence[Placed]) -> Block:
    """The parameter block of a merged launch: a part for each launch, and its first groups."""
    kernel = parts[0].launch.kernel
    count = most_parts(kernel)
    each = (kernel.parameters, (count,))
    block = np.zeros(1, np.dtype([("each", *each), ("starts", "<i4", (count,))], align=True))
    block["starts"] = np.iinfo(np.int32).max
    start = 0
    for i, part in enumerate(parts):
        block["each"][0, i] = part.launch.parameters(part.named_offsets)[0]
        block["starts"][0, i] = start
        start += part.launch.groups[0]
    return block
