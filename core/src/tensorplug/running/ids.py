"""Ids of rows, checked before the work that uses them: given ids always, others by a sanitizer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tensorplug.device.buffer import BufferUsage
from tensorplug.device.observing import RaceDetector
from tensorplug.device.part import Part
from tensorplug.device.placing import host_data, read
from tensorplug.device.plan import Plan
from tensorplug.device.rowids import check_stored
from tensorplug.fusion.formulas import Group
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Tensor, array_view
from tensorplug.ops.ids import RowIds, row_ids

GivenIds = Mapping[Tensor, Sequence[RowIds]]
"""By input of a graph: which sources of nodes read ids from it."""


def given_ids(graph: Graph) -> GivenIds:
    """The ids that lie in inputs of `graph` which it does not write."""
    found: dict[Tensor, list[RowIds]] = {}
    for held in _held(graph.nodes):
        if held.ids.root.is_input:
            uses = found.setdefault(held.ids.root, [])
            # Each layer writes its cache by the same ids: one check does for all.
            if not any(use.ids is held.ids and use.rows <= held.rows for use in uses):
                uses.append(held)
    if found:
        for written in {root for node in graph.nodes for root in node.written_roots}:
            found.pop(written, None)
    return found


def check_given(given: GivenIds, inputs: Mapping[Tensor, Any]) -> None:
    """Raise GraphError for an id in `inputs` that names no row."""
    for root, uses in given.items():
        if root not in inputs:
            continue
        data = inputs[root]
        for held in uses:
            if held.ids is root and isinstance(data, np.ndarray) and data.dtype == root.dtype.numpy:
                held.check(data)  # as nearly all ids are given: this costs each run the least
            else:
                content = host_data(root, data).reshape(-1).view(np.uint8)
                held.check(array_view(held.ids, content, held.ids.view_offset))


def check_constants(graph: Graph) -> None:
    """Raise GraphError for a wrong id in weights that lie in host memory."""
    for held in _held(graph.nodes):
        home = held.ids.root.place
        if (
            home is not None
            and home.buffer.usage is BufferUsage.WEIGHTS
            and home.buffer.type.is_host
        ):
            held.check(read(held.ids))


def _held(nodes: Iterable[Tensor]) -> Iterator[RowIds]:
    return (held for node in nodes for held in row_ids(node))


def run_checked(
    sanitizer: RaceDetector,
    nodes: Sequence[Tensor],
    plan: Plan,
    bindings: Bindings,
) -> None:
    """Run a split, the work before each node with ids first, so that they are looked at in time.

    `nodes` are those of the split, with views. Raises GraphError before such a node writes
    anything.
    """
    backend = plan.backend
    waiting: list[Tensor | Group] = []
    cut = False
    for work in plan.bound.work:
        parts = work.nodes if isinstance(work, Group) else (work,)
        held = [ids for ids in _held(parts) if ids.ids.size and bindings.has(ids.ids)]
        if held:
            if any(ids.ids.root in _made(waiting) for ids in held):
                backend.compute(_segment(nodes, waiting, bindings))
                waiting, cut = [], True
            backend.synchronize()
            for ids in held:
                sanitizer.touches(ids.ids, bindings.where(ids.ids))
            for node in parts:
                check_stored(node, bindings)
        waiting.append(work)
    if not cut:
        plan.run()
    elif waiting:
        backend.compute(_segment(nodes, waiting, bindings))


def _made(work: Iterable[Tensor | Group]) -> set[Tensor]:
    nodes = (node for w in work for node in (w.nodes if isinstance(w, Group) else (w,)))
    return {node.root for node in nodes}


def _segment(nodes: Sequence[Tensor], work: Sequence[Tensor | Group], bindings: Bindings) -> Part:
    """Some of the work of a split, with all of its views."""
    groups = tuple(w for w in work if isinstance(w, Group))
    inside = {*(n for g in groups for n in g.nodes), *(w for w in work if isinstance(w, Tensor))}
    kept = [n for n in nodes if n in inside or n.is_view]
    return Part(kept, bindings, groups=groups)
