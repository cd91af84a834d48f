"""Arranges the nodes and groups of each split in stages, for devices that run work in parallel."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tensorplug.device.abilities import SupportsConcurrency
from tensorplug.device.backend import Backend
from tensorplug.device.part import units
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Place, Tensor
from tensorplug.planning.split import Split
from tensorplug.planning.stages import arrange, nodes_of


def arranged(
    splits: Sequence[Split],
    backends: Sequence[Backend],
    moved: Mapping[Tensor, Place],
    ahead: int | None,
) -> tuple[Split, ...]:
    """Return `splits` with their nodes in the order of stages.

    With `ahead`, the splits of all backends are arranged; without it, the splits of backends with
    SupportsConcurrency that ask for it. `moved` maps persistent tensors to their new places.
    """
    wanted = [_wanted(backend) if ahead is None else ahead for backend in backends]
    places = Bindings(moved)
    return tuple(_arranged(split, wanted[split.stream], places) for split in splits)


def _wanted(backend: Backend) -> int | None:
    return backend.ahead if isinstance(backend, SupportsConcurrency) else None


def _arranged(split: Split, ahead: int | None, places: Bindings) -> Split:
    if ahead is None:
        return split
    stages = arrange(units(split.nodes, split.groups), ahead=ahead, places=places)
    order = (node for stage in stages for work in stage for node in nodes_of(work))
    return replace(split, nodes=tuple(order), stages=stages)
