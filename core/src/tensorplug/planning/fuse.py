"""Finds the groups of nodes in each split that its device computes with one kernel."""

from collections.abc import Sequence
from dataclasses import replace

from tensorplug.device.abilities import SupportsFusion
from tensorplug.device.device import Device
from tensorplug.errors import Refusal
from tensorplug.fusion.formulas import Group
from tensorplug.fusion.matching import Finder
from tensorplug.graph.graph import Graph
from tensorplug.planning.assign import Streams
from tensorplug.planning.split import Split


def fused(graph: Graph, splits: Sequence[Split], streams: Streams) -> tuple[Split, ...]:
    """Return `splits` with the groups that their devices accept, and the groups refused."""
    devices = [stream.device for stream in streams.backends]
    finders = {
        i: Finder(graph, device.fusions)
        for i, device in enumerate(devices)
        if isinstance(device, SupportsFusion)
    }
    return tuple(
        _fused(split, devices[split.stream], finders.get(split.stream), streams) for split in splits
    )


def _fused(split: Split, device: Device, finder: Finder | None, streams: Streams) -> Split:
    if finder is None or not isinstance(device, SupportsFusion):
        return split
    refused: list[tuple[Group, str]] = []

    def refuses(group: Group) -> Refusal | None:
        placed = {t: kind for t in group.inputs if (kind := streams.placed_type(t)) is not None}
        refusal = device.refuses_group(group, placed)
        if refusal is not None:
            refused.append((group, refusal.reason))
        return refusal

    groups = finder.groups(split.nodes, refuses)
    return replace(split, groups=groups, refused=tuple(refused))
