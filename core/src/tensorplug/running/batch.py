"""`Batch`: what one batch in flight has for itself; `Lane`: what batches of all schedules share."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tensorplug.device.buffer import Buffer, BufferType, BufferUsage
from tensorplug.device.part import Part
from tensorplug.device.placing import align, allocate
from tensorplug.device.plan import Plan
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Array, Place, Tensor
from tensorplug.planning.planned import PlannedGraph, private_by_pool
from tensorplug.planning.program import Copy, Program
from tensorplug.planning.split import Split
from tensorplug.running.arena import Arena

if TYPE_CHECKING:
    from tensorplug.running.results import InFlight


@dataclass(slots=True, eq=False)
class Lane:
    """What all batches with the same number share, of which one is in flight."""

    arena: Arena = field(default_factory=lambda: Arena((), lambda: None))
    """The memory of their transient inputs, and of what is copied between devices."""
    pending: "InFlight | None" = None
    """The batch in flight."""


@dataclass(slots=True, eq=False)
class Batch:
    """What one batch in flight has for itself: inputs with lasting values, bindings and plans."""

    lane: Lane = field(default_factory=Lane)
    own: Mapping[Tensor, Place] = field(default_factory=dict)
    """Where inputs lie that keep their values between runs."""
    buffers: Sequence[Buffer] = ()
    """The memory of these inputs."""
    places: Mapping[Tensor, Place] = field(default_factory=dict)
    """`own`, and the places in the memory of the lane."""
    bindings: Bindings = field(default_factory=Bindings)
    locals: list[Bindings] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    values: dict[Tensor, int] = field(default_factory=dict)
    """For each input the run from which its value here is."""
    staging: dict[Tensor, Array] = field(default_factory=dict)
    """Host memory through which copies go from device to device."""
    joined: Mapping[Copy, int] = field(default_factory=dict)
    """The bytes of copies that are made with those before or behind them: see `joined_copies`."""
    generations: tuple[int, int] = (-1, -1)
    """Those of the compute memory and of the memory of the lane, to which plans are bound."""


def batch_memory(
    planned: PlannedGraph, arena: Arena, *, reserve: bool = False
) -> tuple[dict[Tensor, Place], list[Buffer]]:
    """Memory for the inputs of one batch: their places, and buffers. Raises OutOfMemory."""
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

        places: dict[Tensor, Place] = {}
        for memory in (planned.memory, planned.lane):
            chunks = [
                [make(pool, size) for size in sizes]
                for pool, sizes in zip(pools, memory.sizes, strict=True)
            ]
            for tensor, slot in memory.slots.items():
                places[tensor] = Place(chunks[slot.pool][slot.chunk], slot.offset)
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


def joined_copies(program: Program, batch: Batch) -> dict[Copy, int]:
    """Copies that one transfer makes, because they follow each other here and there alike.

    The first takes the bytes of all of them, with the gaps between aligned tensors, the others 0.
    A transfer costs the host as much as a small copy does, and inputs are small and several.
    """
    sizes: dict[Copy, int] = {}
    joined: list[Copy] = []
    for step in program:
        if not isinstance(step, Copy):
            joined = []
        elif joined and _follows(joined[-1], step, batch):
            joined.append(step)
            begin, end = (batch.bindings.where(c.source).offset for c in (joined[0], step))
            sizes[joined[0]], sizes[step] = end - begin + step.source.nbytes, 0
        else:
            joined = [step]
    return sizes


def _follows(before: Copy, step: Copy, batch: Batch) -> bool:
    """Whether a step continues the copy before it, in the memory of both streams."""
    if (before.sender, before.stream) != (step.sender, step.stream):
        return False
    if before.expert_user is not None or step.expert_user is not None:
        return False
    # What lies in compute memory of the sender is lent.
    if (before.source.root in batch.places) != (step.source.root in batch.places):
        return False
    where = batch.bindings.where
    steps = set()
    for a, b in (
        (where(before.source), where(step.source)),
        (where(before.target), where(step.target)),
    ):
        kind = a.buffer.type
        if a.buffer is not b.buffer or not kind.standard_layout:
            return False
        if b.offset != align(a.offset + before.source.nbytes, kind.alignment):
            return False
        steps.add(b.offset - a.offset)
    return len(steps) == 1  # tensors may be aligned differently here and there


def reserve(planned: PlannedGraph, arena: Arena, lanes: Sequence[Lane]) -> None:
    """Allocate the memory of a planned graph and of a batch of it in each lane, to be used later.

    Raises OutOfMemory, without new memory for inputs.
    """
    arena.grow(planned.memory.sizes)
    before, made = arena.free, list[Buffer]()
    try:
        for lane in lanes:
            lane.arena.grow(planned.lane.sizes)
            made += batch_memory(planned, arena, reserve=True)[1]
    except BaseException:
        arena.give(made)
        for buffer in made:
            if buffer not in before:
                arena.release_spare(buffer)
        raise
    arena.give(made)
