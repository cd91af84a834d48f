"""Data exchange between the devices of a meta device: copies, redistribution, reduction."""

from collections.abc import Sequence

import numpy as np

from tensorplug.device import transfer
from tensorplug.device.backend import Backend, SupportsCollectives, order_after
from tensorplug.device.moving import queue_copy
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Place, array_view
from tensorplug.meta.buffer import put, take
from tensorplug.meta.local import like
from tensorplug.meta.program import AllReduce, Exchange, Redeal

Streams = Sequence[Backend]
Places = Sequence[Bindings]
"""The places of the tensors of each device."""


def exchange(step: Exchange, streams: Streams, places: Places) -> None:
    """Queue all copies. Later work of a source's stream waits until its readers are done."""
    read_by: set[tuple[int, int]] = set()
    for move in step.moves:
        if not move.size:
            continue
        start = places[move.source].where(move.start)
        end = places[move.target].where(move.end)
        reader = queue_copy(
            streams[move.source],
            streams[move.target],
            Place(start.buffer, start.offset + move.source_offset),
            Place(end.buffer, end.offset + move.target_offset),
            move.size,
        )
        if reader is streams[move.target] and move.source != move.target:
            read_by.add((move.source, move.target))
    for lender, reader_index in read_by:
        order_after(streams[reader_index], streams[lender])


def redeal(step: Redeal, streams: Streams, places: Places) -> None:
    """Wait for all streams, gather a tensor on the host, and scatter it in its new state."""
    for stream in streams:
        stream.synchronize()
    source, target = step.source, step.target
    count = len(streams) if source.state.is_cut else 1
    parts = [
        transfer.read(t, places[d]) if t.size else None for d, t in enumerate(source.locals[:count])
    ]
    whole = np.empty(step.of.dtype.row_size(step.of.ne[0]) * step.of.rows, np.uint8)
    array = array_view(like(step.of, step.of.ne), whole, 0)
    for d, data in enumerate(parts):
        if data is not None:
            put(array, source.locals[d], source.state, d, data)
    for d, local in enumerate(target.locals):
        if local.size:
            mine = np.ascontiguousarray(take(array, local, target.state, d))
            transfer.write(local, mine, places[d])


def sum_up(step: AllReduce, streams: Streams, places: Places) -> bool:
    """All-reduce by the devices' own collective; False if they have none for this step."""
    device = streams[0].device
    if not step.everyone or not isinstance(device, SupportsCollectives):
        return False
    if any(type(s.device) is not type(device) for s in streams):
        return False
    where = [bindings.where(t) for bindings, t in zip(places, step.locals, strict=True)]
    return device.all_reduce(streams, where, step.locals[0])
