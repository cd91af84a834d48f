"""Reads row ids from memory, and finds the wrong id that made a kernel fail."""

from collections.abc import Iterable

import numpy as np

from tensorplug.device.buffer import as_bytes
from tensorplug.errors import GraphError, TensorplugError
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Array, Tensor, array_view
from tensorplug.ops.ids import row_ids


def stored_ids(ids: Tensor, bindings: Bindings) -> Array:
    """The values of `ids`. The caller must have waited for the stream that writes them."""
    place = bindings.where(ids)
    span = np.empty(ids.nbytes, np.uint8)
    if ids.size:
        place.buffer.read_tensor(ids, place.offset, as_bytes(span))
    return array_view(ids, span, 0)


def check_stored(node: Tensor, bindings: Bindings) -> None:
    """Raise GraphError if a source of `node` holds an id that is not a row."""
    for held in row_ids(node):
        if held.ids.size and bindings.has(held.ids):
            held.check(stored_ids(held.ids, bindings))


def wrong_id(nodes: Iterable[Tensor], bindings: Bindings) -> GraphError | None:
    """The error for the first wrong row id in the sources of `nodes`; None if all are right."""
    for node in nodes:
        try:
            check_stored(node, bindings)
        except GraphError as error:
            return error
        except TensorplugError:
            continue  # the memory cannot be read, so its ids cannot be checked
    return None
