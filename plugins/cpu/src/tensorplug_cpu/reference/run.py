"""Evaluation of a graph, node by node."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensorplug.device import Array, Graph, GraphError, Tensor, host_data
from tensorplug_cpu.reference.memory import Memory
from tensorplug_cpu.reference.table import action


def compute(
    outputs: Graph | Tensor | Sequence[Tensor], leaf_values: Mapping[Tensor, Any] | None = None
) -> dict[Tensor, Array]:
    """Return the values of all nodes of a graph, in their NumPy shapes, as they are after the run.

    `leaf_values` gives what is stored in leafs (bf16 as uint16, block types as rows of bytes). A
    leaf with a place of its own may be left out. Raises GraphError, Unsupported.
    """
    graph = outputs if isinstance(outputs, Graph) else Graph(outputs)
    memory = execute(graph, leaf_values or {})
    return {node: memory.value(node).reshape(node.shape) for node in graph.nodes}


def execute(graph: Graph, leaf_values: Mapping[Tensor, Any]) -> Memory:
    """Return the memory that a run of `graph` leaves behind."""
    memory = Memory()
    with np.errstate(all="ignore"):
        for leaf in graph.leafs:
            memory.add(leaf)
            slots = memory.window(leaf)
            slots[...] = _given(leaf, leaf_values).reshape(slots.shape)
        for node in graph.nodes:
            if node.view_of is None:
                memory.add(node)
            if not node.is_view and node.size:
                action(node.op)(node, memory)
    return memory


def _given(leaf: Tensor, leaf_values: Mapping[Tensor, Any]) -> Array:
    if leaf in leaf_values:
        return host_data(leaf, leaf_values[leaf])
    if leaf.place is None:
        raise GraphError(f"reference: no value for {leaf}; give one in leaf_values")
    return leaf.numpy()
