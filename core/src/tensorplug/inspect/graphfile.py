"""Graph files: the structure of a graph, without data, as `tensorplug.device.wire` packs it."""

import os
from pathlib import Path

from tensorplug.device.buffer import BufferType
from tensorplug.device.wire import MOST_BYTES, pack_graph, unpack_graph
from tensorplug.errors import FormatError
from tensorplug.graph.graph import Graph
from tensorplug.system.wholefile import whole_file


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write the structure of `graph`; data is left out.

    Raises GraphError for Python functions, and FormatError where the file cannot be written.
    """
    data = pack_graph(graph)
    try:
        with whole_file(Path(path)) as file:
            file.write_bytes(data)
    except OSError as error:
        raise FormatError(f"{_named(path)}: cannot be written: {error.strerror}") from error


def load(path: str | os.PathLike[str], *, memory: BufferType | None = None) -> Graph:
    """Build the graph that a file describes. Raises FormatError.

    Tensors that had memory of their own when they were saved get memory of the type `memory`, with
    nothing in it; without that they are leafs like inputs.
    """
    where = _named(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(2 * MOST_BYTES)
    except OSError as error:
        raise FormatError(f"{where}: cannot be read: {error.strerror}") from error
    return unpack_graph(data, memory=memory, where=where)


def _named(path: str | os.PathLike[str]) -> str:
    return f"graph file {os.fspath(path)!r}"
