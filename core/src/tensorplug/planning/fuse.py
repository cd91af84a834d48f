"""Finds the groups of nodes in each split that its device computes with one kernel."""

from collections.abc import Sequence
from dataclasses import replace

from tensorplug.device.device import Device, SupportsFusion
from tensorplug.errors import Refusal
from tensorplug.fusion.formulas import Group
from tensorplug.fusion.matching import Finder
from tensorplug.graph.graph import Graph
from tensorplug.planning.assign import Field
from tensorplug.planning.split import Split


def fused(graph: Graph, splits: Sequence[Split], field: Field) -> tuple[Split, ...]:
    """Return `splits` with the groups that their devices accept, and the groups refused."""
    devices = [stream.device for stream in field.backends]
    finders = {
        i: Finder(graph, device.fusions)
        for i, device in enumerate(devices)
        if isinstance(device, SupportsFusion)
    }
    return tuple(
        _fused(split, devices[split.stream], finders.get(split.stream), field) for split in splits
    )


def _fused(split: Split, device: Device, finder: Finder | None, field: Field) -> Split:
    if finder is None or not isinstance(device, SupportsFusion):
        return split
    refused: list[tuple[Group, str]] = []

    def refuses(group: Group) -> Refusal | None:
        placed = {t: kind for t in group.inputs if (kind := field.placed_type(t)) is not None}
        refusal = device.refuses_group(group, placed)
        if refusal is not None:
            refused.append((group, refusal.reason))
        return refusal

    groups = finder.groups(split.nodes, refuses)
    return replace(split, groups=groups, refused=tuple(refused))
