"""`Batch`: what one batch in flight has for itself."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tensorplug.device.backend import Plan
from tensorplug.device.buffer import Buffer, BufferType, BufferUsage
from tensorplug.device.part import Part
from tensorplug.device.placing import allocate
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Array, Place, Tensor
from tensorplug.planning.planned import PlannedGraph, private_by_pool
from tensorplug.planning.split import Split
from tensorplug.running.arena import Arena

if TYPE_CHECKING:
    from tensorplug.running.results import InFlight


@dataclass(slots=True, eq=False)
class Batch:
    """What one batch in flight has for itself: private memory, bindings and plans."""

    places: Mapping[Tensor, Place] = field(default_factory=dict)
    buffers: Sequence[Buffer] = ()
    bindings: Bindings = field(default_factory=Bindings)
    locals: list[Bindings] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    values: dict[Tensor, int] = field(default_factory=dict)
    """For each input the run from which its value here is."""
    staging: dict[Tensor, Array] = field(default_factory=dict)
    """Host memory through which copies go from device to device."""
    generation: int = -1
    pending: "InFlight | None" = None


def batch_memory(
    planned: PlannedGraph, arena: Arena, *, reserve: bool = False
) -> tuple[dict[Tensor, Place], list[Buffer]]:
    """Memory for one batch: where its tensors lie, and its buffers. Raises OutOfMemory."""
    places: dict[Tensor, Place] = {}
    buffers: list[Buffer] = []
    try:
        for home, tensors in private_by_pool(planned).items():
            pool = arena.pools[home]
            take = partial(arena.take, pool, reserve=reserve)
            placed, made = allocate(tensors, pool, alloc=take)
            buffers.extend(made.parts)
            for tensor, with_memory in zip(tensors, placed, strict=True):
                assert with_memory.place is not None
                places[tensor] = with_memory.place
    except BaseException:
        arena.give(buffers)
        raise
    return places, buffers


@contextmanager
def unallocated(planned: PlannedGraph, pools: Sequence[BufferType]) -> Iterator[Sequence[Part]]:
    """The part of each split, bound to buffers that only stand for memory."""
    with ExitStack() as stack:

        def make(pool: BufferType, size: int) -> Buffer:
            return stack.enter_context(pool.unallocated(size, BufferUsage.COMPUTE))

        chunks = [
            [make(pool, size) for size in sizes]
            for pool, sizes in zip(pools, planned.memory.sizes, strict=True)
        ]
        places = {
            tensor: Place(chunks[slot.pool][slot.chunk], slot.offset)
            for tensor, slot in planned.memory.slots.items()
        }
        for i, tensors in private_by_pool(planned).items():
            places |= {tensor: Place(make(pools[i], tensor.nbytes), 0) for tensor in tensors}
        bindings = Bindings(places)
        here = [bindings.with_places(copied_to(split, bindings)) for split in planned.splits]
        yield [
            Part(split.nodes, local, groups=split.groups, stages=split.stages)
            for split, local in zip(planned.splits, here, strict=True)
        ]


def copied_to(split: Split, bindings: Bindings) -> dict[Tensor, Place]:
    """Where the copies lie that a split reads in the place of tensors of other devices."""
    return {source: bindings.where(copy) for source, copy in split.local.items()}


def reserve(planned: PlannedGraph, arena: Arena, count: int) -> None:
    """Allocate the memory of a planned graph and `count` batches of it, and leave it to the arena.

    Raises OutOfMemory, without new memory for batches.
    """
    arena.grow(planned.memory.sizes)
    before, made = arena.free, list[Buffer]()
    try:
        for _ in range(count):
            made += batch_memory(planned, arena, reserve=True)[1]
    except BaseException:
        arena.give(made)
        for buffer in made:
            if buffer not in before:
                arena.drop(buffer)
        raise
    arena.give(made)
