"""Graphs as bytes."""

from tensorplug.device.buffer import BufferType
from tensorplug.device.placing import allocate
from tensorplug.device.wire.sealing import seal, unseal
from tensorplug.device.wire.tensors import USAGES, TensorReader, reach, records
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Place


def pack_graph(graph: Graph) -> bytes:
    """Return the structure of `graph` as bytes, without data.

    Raises GraphError if the graph calls Python functions.
    """
    tensors = reach(graph.nodes, (*graph.leafs, *graph.nodes))
    index = {tensor: i for i, tensor in enumerate(tensors)}
    return seal(
        "graph",
        {
            "tensors": records(tensors, index, set(graph.nodes)),
            "outputs": [index[t] for t in graph.outputs],
            "effects": [index[t] for t in graph.effects],
        },
    )


def unpack_graph(data: bytes, *, memory: BufferType | None = None, where: str = "wire") -> Graph:
    """Return the graph that `pack_graph` packed. Raises FormatError, and OutOfMemory for `memory`.

    With `memory`, tensors that had memory of their own get uninitialised memory of this type.
    Without it they are leafs like inputs.
    """
    reader = _Reader(where, unseal("graph", data, where))
    graph = reader.checked(reader.graph)
    if memory is None:
        return graph
    reader.homes = _allocated(reader, memory)
    return reader.checked(reader.graph)


def _allocated(reader: "_Reader", memory: BufferType) -> dict[int, Place]:
    homes: dict[int, Place] = {}
    for role, usage in USAGES.items():
        at = [i for i, record in enumerate(reader.records) if record.get("role") == role]
        placed, _ = allocate([reader.tensors[i] for i in at], memory, usage=usage)
        homes |= {i: t.place for i, t in zip(at, placed, strict=True) if t.place is not None}
    return homes


class _Reader(TensorReader):
    """Builds the graph of a packed text."""

    def graph(self) -> Graph:
        """Return the graph of the text."""
        self._build()
        outputs, effects = (self._picked(self.content, key) for key in ("outputs", "effects"))
        return Graph(outputs, effects=effects)
