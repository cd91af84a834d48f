"""Moves persistent tensors of lost devices to memory of the devices that are left."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tensorplug.device.backend import Backend
from tensorplug.device.buffer import as_bytes
from tensorplug.device.placing import allocate
from tensorplug.errors import DeviceLost, GraphError, OutOfMemory
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Array, Place, Tensor
from tensorplug.running.lost import Restore, persistent

if TYPE_CHECKING:
    from tensorplug.running.scheduler import Scheduler


def move_lost(graph: Graph, scheduler: "Scheduler") -> list[Restore]:
    """Give lost tensors of `graph` new memory; return the functions that restore the states of it.

    Tensors with a source get their bytes, states zeros. Raises DeviceLost for a tensor with
    neither, GraphError for a source of the wrong size, OutOfMemory.
    """
    lost, owed = scheduler.lost, list[Restore]()
    for root in filter(lost.has, persistent(graph.leafs)):
        data: Array | None = None
        if root in lost.states:
            owed.append(lost.states[root])
        elif root in lost.sources:
            data = np.asarray(lost.sources[root]())
            if data.nbytes != root.nbytes:
                raise GraphError(f"{root}: its source gives {data.nbytes} bytes, not {root.nbytes}")
        else:
            raise DeviceLost(
                f"{root}: lay on a device that was lost; say with add_sources() where it comes "
                "from, or with add_states() who restores it"
            )
        _move(root, data, graph, scheduler)
    return owed


def _move(root: Tensor, data: Array | None, graph: Graph, scheduler: "Scheduler") -> None:
    place = _room_for(root, graph, scheduler)
    if data is None:
        put = partial(place.buffer.fill, 0)
    else:
        content = as_bytes(np.ascontiguousarray(data))
        moved = replace(root, place=place)
        put = partial(place.buffer.write_tensor, moved, place.offset, content)
    scheduler.limit.call(put, place.buffer.type.device)
    scheduler.lost.moved[root] = place
    scheduler.lost.spoilt.discard(root)


def _room_for(root: Tensor, graph: Graph, scheduler: "Scheduler") -> Place:
    """Memory of the first backend that has room and runs all nodes of `graph` that read `root`."""
    spec = replace(root, place=None)
    assert root.place is not None
    users = [n for n in graph.nodes if any(s.root is root for s in n.sources)]
    *others, last = scheduler.backends
    for backend in (*(b for b in others if _runs_all(b, users, root)), last):
        try:
            (placed,), buffer = allocate([spec], backend.buffer_type, usage=root.place.buffer.usage)
        except OutOfMemory:
            if backend is last:
                raise
            continue
        scheduler.lost.buffers.append(buffer)
        assert placed.place is not None
        return placed.place
    raise AssertionError("the last backend gives memory or raises")


def _runs_all(backend: Backend, users: Iterable[Tensor], root: Tensor) -> bool:
    kind = backend.buffer_type
    return kind.supports(root) and not any(
        backend.device.refuses(n, {s: kind for s in n.sources if s.root is root}) for n in users
    )
