"""Copies of expert weights: only the experts that a batch uses go to the device."""

import numpy as np

from tensorplug.device.backend import Backend, tell_of_move
from tensorplug.device.moving import queue_copy
from tensorplug.device.transfer import read
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Place, Tensor
from tensorplug.ops.ids import NO_ROW, row_ids


def copy_used_experts(
    sender: Backend,
    stream: Backend,
    chooser: Backend,
    weights: Tensor,
    target: Tensor,
    user: Tensor,
    bindings: Bindings,
) -> Backend | None:
    """Copy the experts whose numbers occur in the ids of the node `user`, runs of them at once.

    The host waits for `chooser`, which makes the ids. Returns the stream that still reads the
    weights, if any.
    """
    ids = user.operands[2]
    assert ids is not None
    chooser.synchronize()
    tell_of_move(stream, None, bindings.where(ids), None, ids.nbytes)
    chosen = read(ids, bindings)
    for held in row_ids(user):
        held.check(chosen)
    used = np.unique(chosen[chosen != NO_ROW])
    start, end = bindings.where(weights), bindings.where(target)
    reader: Backend | None = None
    for run in np.split(used, np.flatnonzero(np.diff(used) != 1) + 1):
        if run.size:
            offset = int(run[0]) * weights.nb[2]
            # In a view the last expert may end before the next one would begin.
            size = min(run.size * weights.nb[2], weights.nbytes - offset)
            reader = queue_copy(
                sender,
                stream,
                Place(start.buffer, start.offset + offset),
                Place(end.buffer, end.offset + offset),
                size,
            )
    return reader
