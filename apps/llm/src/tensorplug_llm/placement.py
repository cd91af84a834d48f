"""Which device holds which layer."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensorplug import Backend, DeviceType
from tensorplug.errors import OptionError

SHARE = 0.9
"""Part of a device's free memory that layers may take; the rest is for computing."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The backend of each layer, of the embedding table and of the output matrix."""

    layers: tuple[Backend, ...]
    embedding: Backend
    output: Backend

    @property
    def counts(self) -> dict[str, int]:
        """Number of layers by device name."""
        names = [backend.name for backend in self.layers]
        return {name: names.count(name) for name in dict.fromkeys(names)}


def distribute(sizes: Sequence[int], backends: Sequence[Backend]) -> tuple[int, ...]:
    """How many layers, of `sizes` bytes each, every backend takes, by free memory.

    Accelerators come first, in proportion to their free memory and as many layers as fit;
    processors share the rest. A device that reports no memory is taken to have room.
    """
    free = [b.device.memory().free for b in backends]
    room = [int(n * SHARE) // max(sizes) if n else len(sizes) for n in free]
    processors = [i for i, b in enumerate(backends) if b.device.type is DeviceType.CPU]
    others = [i for i in range(len(backends)) if i not in processors]

    counts = [0] * len(backends)
    for i, share in _shares(len(sizes), others, free):
        counts[i] = min(share, room[i])
    for i in others:
        counts[i] += min(room[i] - counts[i], len(sizes) - sum(counts))
    for i, share in _shares(len(sizes) - sum(counts), processors or others, free):
        counts[i] += share
    return tuple(counts)


def _shares(total: int, group: Sequence[int], free: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut `total` layers over a group in proportion to free memory, none lost."""
    # One that reports no memory counts as much as the largest of the others.
    parts = [free[i] or max(free[j] for j in group) or 1 for i in group]
    whole = sum(parts) or 1
    edges = [round(total * sum(parts[:n]) / whole) for n in range(len(parts) + 1)]
    return zip(group, (b - a for a, b in itertools.pairwise(edges)), strict=True)


def check_counts(counts: Sequence[int], layers: int, backends: Sequence[Backend]) -> list[int]:
    """Return a count for each backend; one without a number takes the rest. Raises OptionError."""
    names = ", ".join(b.name for b in backends)
    if len(counts) > len(backends) or any(n < 0 for n in counts) or sum(counts) > layers:
        raise OptionError(
            f"layers: {', '.join(map(str, counts))} do not distribute {layers} layers over "
            f"{names}; give at most one number for each device, none negative"
        )
    full = [*counts, *[0] * (len(backends) - len(counts))]
    if len(counts) < len(backends):
        full[len(counts)] += layers - sum(counts)
    elif sum(counts) != layers:
        raise OptionError(
            f"layers: {', '.join(map(str, counts))} make {sum(counts)} of {layers} layers; give "
            f"them all, or leave out the number for {backends[-1].name}"
        )
    return full


def place(
    sizes: Sequence[int],
    backends: Sequence[Backend],
    host: Backend,
    *,
    counts: Sequence[int] | None = None,
    tied: bool,
) -> Placement:
    """Distribute layers of `sizes` bytes over `backends`, in order.

    The output matrix follows the last layer. The embedding table is the same tensor where the two
    are `tied`, except between machines, where the first layer would wait for the last device. Else
    `host` looks it up, so that only the rows of a batch travel.
    """
    each = check_counts(counts, len(sizes), backends) if counts else distribute(sizes, backends)
    homes = tuple(b for b, n in zip(backends, each, strict=True) for _ in range(n))
    first, last = homes[0], homes[-1]
    is_one = tied and (first is last or not last.device.remote)
    return Placement(homes, last if is_one else host, last)
