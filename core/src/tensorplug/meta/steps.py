"""The program of a meta device's plan: segments, exchanges and reductions as steps of the one loop.

`tensorplug.running.run` runs them. Streams are numbered like the devices of the meta device, and
the tensors of each device are its own, so one table of places serves all steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tensorplug.device import transfer
from tensorplug.device.abilities import SupportsCollectives
from tensorplug.device.backend import order_after
from tensorplug.device.moving import queue_copy
from tensorplug.graph.tensor import Place, Tensor, array_view
from tensorplug.meta.buffer import put, take
from tensorplug.meta.local import like
from tensorplug.meta.program import (
    AllReduce,
    Exchange,
    MetaProgram,
    MetaStep,
    Move,
    Redeal,
    Segment,
    flat,
)
from tensorplug.planning.program import Program, Run, Step
from tensorplug.running.fleet import Fleet
from tensorplug.running.run import DO, Calls, RunContext, run


@dataclass(frozen=True, slots=True)
class ReleaseSources(Step):
    """Streams whose memory was read by the moves before wait for the streams that read it."""

    @property
    def words(self) -> str:
        return "waits for readers"

    def title(self, names: Sequence[str]) -> str:
        return "wait for readers"


@dataclass(frozen=True, slots=True)
class SumUp(Step):
    """All devices get the sum of their summands: by a collective of theirs, else by `steps`."""

    reduction: AllReduce
    steps: Program

    @property
    def words(self) -> str:
        return "sums up"

    @property
    def moved(self) -> Tensor:
        return self.reduction.of

    def title(self, names: Sequence[str]) -> str:
        return f"sum {self.reduction.of.label} over {len(names)} devices"


# --- the program -------------------------------------------------------------------------------


def program_of(program: MetaProgram) -> Program:
    """The steps of a meta device's plan. A run's `split` is the number of its plan."""
    numbers = iter(range(len(plans_of(program))))
    return tuple(_steps(program.steps, numbers))


def plans_of(program: MetaProgram) -> list[tuple[Segment, int]]:
    """The plans that the program runs, in order: a segment and a device with nodes in it."""
    return [
        (step, device)
        for step in flat(program.steps)
        if isinstance(step, Segment)
        for device, nodes in enumerate(step.nodes)
        if nodes
    ]


def _steps(found: Sequence[MetaStep], numbers: Iterator[int]) -> Iterator[Step]:
    for step in found:
        if isinstance(step, Segment):
            for device, nodes in enumerate(step.nodes):
                if nodes:
                    yield Run(device, next(numbers), nodes, {})
        elif isinstance(step, Exchange):
            yield from (move for move in step.moves if move.size)
            yield ReleaseSources(0, None)
        elif isinstance(step, Redeal):
            yield step
        else:
            yield SumUp(0, None, step, tuple(_steps(step.steps, numbers)))


# --- what each step does -----------------------------------------------------------------------


def _move(move: Move, fleet: Fleet, context: RunContext) -> None:
    places = context.batch.bindings
    start, end = places.where(move.start), places.where(move.end)
    target = fleet.backends[move.stream]
    reader = queue_copy(
        fleet.backends[move.source],
        target,
        Place(start.buffer, start.offset + move.source_offset),
        Place(end.buffer, end.offset + move.target_offset),
        move.size,
    )
    if reader is target and move.source != move.stream:
        context.lent.append((move.source, reader))


def _release(_step: ReleaseSources, fleet: Fleet, context: RunContext) -> None:
    lent, context.lent = context.lent, []
    for lender, reader in dict.fromkeys(lent):
        order_after(reader, fleet.backends[lender])


def _redeal(step: Redeal, fleet: Fleet, context: RunContext) -> None:
    for stream in fleet.backends:
        stream.synchronize()
    places, of, source, target = context.batch.bindings, step.of, step.source, step.target
    count = len(fleet.backends) if source.state.is_cut else 1
    read = [transfer.read(t, places) if t.size else None for t in source.locals[:count]]
    whole = np.empty(of.dtype.row_size(of.ne[0]) * of.rows, np.uint8)
    array = array_view(like(of, of.ne), whole, 0)
    for d, data in enumerate(read):
        if data is not None:
            put(array, source.locals[d], source.state, d, data)
    for d, local in enumerate(target.locals):
        if local.size:
            mine = np.ascontiguousarray(take(array, local, target.state, d))
            transfer.write(local, mine, places)


def _sum_up(step: SumUp, fleet: Fleet, context: RunContext) -> None:
    if not _by_collective(step.reduction, fleet, context):
        run(step.steps, fleet, context, fleet.calls)


def _by_collective(reduction: AllReduce, fleet: Fleet, context: RunContext) -> bool:
    """Sum by a collective of the devices; False if they have none for this tensor."""
    device = fleet.backends[0].device
    if not reduction.everyone or not isinstance(device, SupportsCollectives):
        return False
    if any(type(s.device) is not type(device) for s in fleet.backends):
        return False
    where = [context.batch.bindings.where(t) for t in reduction.locals]
    return device.all_reduce(fleet.backends, where, reduction.locals[0])


CALLS: Calls = {
    **DO,
    Move: _move,
    ReleaseSources: _release,
    Redeal: _redeal,
    SumUp: _sum_up,
}
