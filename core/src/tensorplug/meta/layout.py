"""One device's share of a program: the groups that it fuses and the memory that it needs."""

from collections.abc import Iterator, Mapping, Sequence

from tensorplug.device.abilities import SupportsFusion
from tensorplug.device.buffer import BufferType
from tensorplug.device.device import Device
from tensorplug.fusion.formulas import Group
from tensorplug.fusion.matching import find_groups
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Tensor
from tensorplug.meta.program import (
    AllReduce,
    Exchange,
    MetaProgram,
    MetaStep,
    Redeal,
    Segment,
    flat,
)
from tensorplug.planning.memory import MemoryMap, Moment, plan_memory
from tensorplug.planning.split import Split
from tensorplug.planning.timeline import node_moments

Groups = Mapping[Segment, tuple[Group, ...]]


def fused(program: MetaProgram, index: int, device: Device) -> Groups:
    """The groups of each segment that `device` computes with one kernel."""
    segments = [s for s in flat(program.steps) if isinstance(s, Segment)]
    nodes = [node for segment in segments for node in segment.nodes[index]]
    if not isinstance(device, SupportsFusion) or not nodes:
        return {}
    shared = [*_exchanged(program, index), *(n for n in nodes if n in program.homes[index])]
    writes = [node for node in nodes if node.writes]
    if not shared and not writes:
        return {}
    graph = Graph(shared, effects=writes)
    return {
        segment: find_groups(
            graph,
            device.fusions,
            device.refuses_group,
            nodes=segment.nodes[index],
        )
        for segment in segments
        if segment.nodes[index]
    }


def _exchanged(program: MetaProgram, index: int) -> Iterator[Tensor]:
    """Tensors of a device that exchanges read or write, or that reductions change."""
    for step in flat(program.steps):
        if isinstance(step, Exchange):
            yield from (m.start for m in step.moves if m.source == index)
            yield from (m.end for m in step.moves if m.stream == index)
        elif isinstance(step, Redeal):
            yield step.source.locals[index]
    for step in program.steps:
        if isinstance(step, AllReduce):
            yield step.locals[index]


def lay_out(program: MetaProgram, index: int, kind: BufferType, groups: Groups) -> MemoryMap:
    """Plan the memory of one device, for tensors without a home."""
    timeline: list[Moment] = []
    for step in flat(program.steps):
        timeline.extend(_moments(step, index, groups))
    return plan_memory(timeline, [kind], placed=program.homes[index])


def _moments(step: MetaStep, index: int, groups: Groups) -> Sequence[Moment]:
    if isinstance(step, Segment):
        nodes, found = step.nodes[index], groups.get(step, ())
        return list(node_moments(Split(0, 0, nodes, (), {}, frozenset(), found)))
    if isinstance(step, Exchange):
        read = [m.start for m in step.moves if m.source == index]
        made = [m.end for m in step.moves if m.stream == index]
    else:
        assert isinstance(step, Redeal)
        read, made = [step.source.locals[index]], [step.target.locals[index]]
    touched = [*made, *read]
    if not touched:
        return []
    return [Moment(touched[0], tuple(read), 0, tuple(t.root for t in made), ())]
