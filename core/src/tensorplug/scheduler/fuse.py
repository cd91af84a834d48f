"""Finds the nodes of each split that its device computes as one."""

from collections.abc import Sequence
from dataclasses import replace

from tensorplug.device import Device, SupportsFusion
from tensorplug.errors import Refusal
from tensorplug.fusion import Group, find_groups
from tensorplug.graph import Graph
from tensorplug.scheduler.assign import Field, placed_type
from tensorplug.scheduler.split import Split


def fused(graph: Graph, splits: Sequence[Split], field: Field) -> tuple[Split, ...]:
    """`splits` with the groups that their devices take, and the reasons for those refused."""
    devices = [backend.device for backend in field.backends]
    return tuple(_fused(graph, split, devices[split.backend]) for split in splits)


def _fused(graph: Graph, split: Split, device: Device) -> Split:
    if not isinstance(device, SupportsFusion):
        return split
    refused: list[tuple[Group, str]] = []

    def accepts(group: Group) -> bool:
        placed = {t: kind for t in group.inputs if (kind := placed_type(t)) is not None}
        answer = device.supports_group(group, placed)
        if isinstance(answer, Refusal):
            refused.append((group, answer.reason))
        return bool(answer)

    groups = find_groups(graph, device.fusions, accepts, nodes=split.nodes)
    return replace(split, groups=groups, refused=tuple(refused))
