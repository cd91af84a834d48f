"""Moves persistent tensors of lost devices to devices that are left, and home again."""

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tensorplug.device.backend import Backend
from tensorplug.device.buffer import BufferType, MultiBuffer, as_bytes
from tensorplug.device.device import Device
from tensorplug.device.placing import allocate
from tensorplug.errors import DeviceLost, GraphError, OutOfMemory, TensorplugError
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Array, Place, Tensor
from tensorplug.running.lost import Restore, SupportsFileRange, persistent

if TYPE_CHECKING:
    from tensorplug.running.runs import Runs


def move_lost(graph: Graph, runs: "Runs") -> list[Restore]:
    """Give lost tensors of `graph` new memory; return the functions that restore the states of it.

    Tensors with a source get their bytes, states zeros. Raises DeviceLost for a tensor with
    neither, GraphError for a source of the wrong size, OutOfMemory.
    """
    lost, owed = runs.lost, list[Restore]()
    for root in filter(lost.has, persistent(graph.leafs)):
        if root in lost.states:
            owed.append(lost.states[root])
        elif root not in lost.sources:
            raise DeviceLost(
                f"{root}: lay on a device that was lost; say with add_sources() where it comes "
                "from, or with add_states() who restores it"
            )
        place, buffer = _room_for(root, graph, runs)
        if root in lost.states:
            runs.limit.call(partial(place.buffer.fill, 0), place.buffer.type.device)
        else:
            _put(root, lost.sources[root], place, runs)
        _settle_at(root, place, buffer, runs)
    return owed


def move_home(backend: Backend, runs: "Runs") -> None:
    """Move tensors that lay on a lost device back to `backend`, which took its place.

    Constants come from their sources, states from where they are now. Raises OutOfMemory.
    """
    lost = runs.lost
    for root, present in list(lost.moved.items()):
        assert root.place is not None
        kind = counterpart(root.place.buffer.type, backend.device)
        if kind is None:
            continue
        (placed,), buffer = _allocate(root, kind)
        place = placed.place
        assert place is not None
        if root in lost.sources:
            _put(root, lost.sources[root], place, runs)
        else:
            data = np.empty(root.nbytes, np.uint8)
            take = partial(present.buffer.read_tensor, root, present.offset, as_bytes(data))
            runs.limit.call(take, present.buffer.type.device)
            _write(root, data, place, runs)
        _settle_at(root, place, buffer, runs)


def _put(root: Tensor, source: object, place: Place, runs: "Runs") -> None:
    """Write the bytes of a source to a place; a remote device reads its own file if it has one."""
    device = place.buffer.type.device
    there = source.range() if device.remote and isinstance(source, SupportsFileRange) else None
    if there is not None:
        moved = replace(root, place=place)
        read = partial(place.buffer.read_file, moved, place.offset, there)
        if runs.limit.call(read, device):
            return
    data = np.asarray(runs.lost.sources[root]())
    if data.nbytes != root.nbytes:
        raise GraphError(f"{root}: its source gives {data.nbytes} bytes, not {root.nbytes}")
    _write(root, data, place, runs)


def _write(root: Tensor, data: Array, place: Place, runs: "Runs") -> None:
    content = as_bytes(np.ascontiguousarray(data))
    moved = replace(root, place=place)
    put = partial(place.buffer.write_tensor, moved, place.offset, content)
    runs.limit.call(put, place.buffer.type.device)


def _settle_at(root: Tensor, place: Place, buffer: MultiBuffer, runs: "Runs") -> None:
    """`root` lies at `place` of `buffer` from now on."""
    lost = runs.lost
    before = lost.buffers.pop(root, None)
    lost.moved[root], lost.buffers[root] = place, buffer
    lost.spoilt.discard(root)
    if before is not None:
        with contextlib.suppress(TensorplugError):  # its device may be lost too
            before.close()


def _room_for(root: Tensor, graph: Graph, runs: "Runs") -> tuple[Place, MultiBuffer]:
    """Memory of the first backend that has room and runs all nodes of `graph` that read `root`.

    A device that was taken back comes first for what lay there.
    """
    assert root.place is not None
    users = [n for n in graph.nodes if any(s.root is root for s in n.sources)]
    *others, last = runs.fleet.backends
    kinds = [b.buffer_type for b in others if _runs_all(b, users, root)]
    homes = [counterpart(root.place.buffer.type, b.device) for b in runs.fleet.backends]
    for kind in (*filter(None, homes), *kinds, last.buffer_type):
        try:
            (placed,), buffer = _allocate(root, kind)
        except OutOfMemory:
            if kind is last.buffer_type:
                raise
            continue
        assert placed.place is not None
        return placed.place, buffer
    raise AssertionError("the last backend gives memory or raises")


def _allocate(root: Tensor, kind: BufferType) -> tuple[list[Tensor], MultiBuffer]:
    assert root.place is not None
    return allocate([replace(root, place=None)], kind, usage=root.place.buffer.usage)


def counterpart(kind: BufferType, device: Device) -> BufferType | None:
    """The buffer type of `device` that is what `kind` was on a device of the same name."""
    if kind.device is device or kind.device.name != device.name:
        return None
    kinds = (device.buffer_type, *device.extra_buffer_types)
    return next((k for k in kinds if k.name == kind.name), device.buffer_type)


def _runs_all(backend: Backend, users: Iterable[Tensor], root: Tensor) -> bool:
    kind = backend.buffer_type
    return kind.supports(root) and not any(
        backend.device.refuses(n, {s: kind for s in n.sources if s.root is root}) for n in users
    )
