"""Runs graphs in memory of a device without a scheduler, for tests."""

from collections.abc import Mapping
from typing import Any

import tensorplug as tp
from tensorplug.device import Array, Tensor, allocate, leaf, transfer


def bind(
    device: tp.Device,
    graph: tp.Graph | tp.Part,
    values: Mapping[Tensor, Any],
    over: Mapping[Tensor, Tensor] | None = None,
) -> tp.Bindings:
    """Bindings in memory of `device`, with the values of leafs written.

    `over` maps a node to the tensor over whose memory its result is placed.
    """
    over = over or {}
    roots = [t for t in (*graph.leafs, *graph.nodes) if t.view_of is None and t.place is None]
    homeless = [t for t in roots if t not in over]
    placed, _ = allocate([leaf(t.name, t.shape, t.dtype) for t in homeless], device.buffer_type)
    places = {t: p.place for t, p in zip(homeless, placed, strict=True) if p.place is not None}
    bindings = tp.Bindings({**places, **{t: places[source] for t, source in over.items()}})
    for tensor, value in values.items():
        transfer.write(tensor, value, bindings)
    return bindings


def run(
    backend: tp.Backend,
    node: Tensor,
    values: Mapping[Tensor, Any],
    over: Mapping[Tensor, Tensor] | None = None,
) -> Array:
    """Compute `node` once and return its value."""
    graph = tp.Graph(node)
    bindings = bind(backend.device, graph, values, over)
    backend.compute(tp.Part.of(graph, bindings))
    return transfer.read(node, bindings)
