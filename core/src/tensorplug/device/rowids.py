"""Reads ids of rows from memory, and finds the wrong id that made a backend's kernel fail."""

from collections.abc import Iterable

import numpy as np

from tensorplug.device.buffer import as_bytes
from tensorplug.errors import GraphError, TensorplugError
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Array, Tensor, array_view
from tensorplug.ops.ids import row_ids


def stored_ids(ids: Tensor, bindings: Bindings) -> Array:
    """The values of `ids`. The stream that writes them must have been waited for."""
    place = bindings.where(ids)
    span = np.empty(ids.nbytes, np.uint8)
    if ids.size:
        place.buffer.read_tensor(ids, place.offset, as_bytes(span))
    return array_view(ids, span, 0)


def check_stored(node: Tensor, bindings: Bindings) -> None:
    """Raise GraphError for an id of `node` that names no row."""
    for held in row_ids(node):
        if held.ids.size and bindings.has(held.ids):
            held.check(stored_ids(held.ids, bindings))


def wrong_id(nodes: Iterable[Tensor], bindings: Bindings) -> GraphError | None:
    """The error for the first id of `nodes` that names no row; None where all are right."""
    for node in nodes:
        try:
            check_stored(node, bindings)
        except GraphError as error:
            return error
        except TensorplugError:
            continue  # memory that cannot be read says nothing
    return None
