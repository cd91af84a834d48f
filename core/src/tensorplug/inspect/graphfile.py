"""Saves the structure of a graph as JSON, without data, and loads it again."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorplug.device.buffer import BufferType, BufferUsage
from tensorplug.device.placing import allocate
from tensorplug.dtypes import dtype as dtype_of
from tensorplug.errors import FormatError, GraphError
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Flags, Tensor, Value, leaf
from tensorplug.ops.table import OPS, apply, in_place, op

FORMAT = "tensorplug.graph.graph"
VERSION = 1
LARGEST = 1 << 62
"""The most bytes of a tensor; a file with a larger tensor is rejected as damaged."""

_FLAGS = {"input": Flags.INPUT, "param": Flags.PARAM}
_ROLES = ("input", "param", "weights", "memory", "constant")
_LEAF = {"name": str, "dtype": str, "shape": list, "role": str}
_NODE = {"op": str, "name": str, "operands": list, "params": dict, "dtype": str, "shape": list}
_TOP = {"leafs": list, "nodes": list, "outputs": list, "effects": list}


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write the structure of `graph` without data.

    Raises GraphError for nodes that call Python functions.
    """
    called = next((t for t in graph.nodes if any(map(callable, t.params.values()))), None)
    if called is not None:
        raise GraphError(f"save {graph!r}: {called} calls a Python function; no file can hold one")
    index = {tensor: i for i, tensor in enumerate((*graph.leafs, *graph.nodes))}
    content = {
        "format": FORMAT,
        "version": VERSION,
        "leafs": [_leaf_record(tensor) for tensor in graph.leafs],
        "nodes": [_node_record(tensor, index) for tensor in graph.nodes],
        "outputs": [index[tensor] for tensor in graph.outputs],
        "effects": [index[tensor] for tensor in graph.effects],
    }
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load(path: str | os.PathLike[str], *, memory: BufferType | None = None) -> Graph:
    """Build the graph that a file describes. Raises FormatError.

    Tensors that had memory of their own when they were saved get uninitialized memory of the type
    `memory`. Without `memory`, they become leafs without memory.
    """
    where = f"graph file {os.fspath(path)!r}"
    content = _read(where, path)
    try:
        tensors = _place([_build_leaf(where, r) for r in content["leafs"]], content, memory)
        for record in content["nodes"]:
            tensors.append(_build_node(where, record, tensors))
        outputs, effects = (
            [_pick(where, tensors, i) for i in content[key]] for key in ("outputs", "effects")
        )
        return Graph(outputs, effects=effects)
    except FormatError:
        raise
    except (GraphError, ValueError, TypeError) as error:
        raise FormatError(f"{where}: {error}") from error


# --- writing -----------------------------------------------------------------------------------


def _leaf_record(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype.name,
        "shape": list(tensor.shape),
        "role": _role(tensor),
    }


def _role(tensor: Tensor) -> str:
    flag = next((role for role, flag in _FLAGS.items() if flag in tensor.flags), "")
    if flag:
        return flag
    if tensor.storage is None:
        return "constant"
    return "weights" if tensor.storage.buffer.usage is BufferUsage.WEIGHTS else "memory"


def _node_record(tensor: Tensor, index: Mapping[Tensor, int]) -> dict[str, Any]:
    return {
        "op": tensor.op,
        "name": tensor.name,
        "operands": [None if t is None else index[t] for t in tensor.operands],
        "params": dict(tensor.params),
        "dtype": tensor.dtype.name,
        "shape": list(tensor.shape),
        "in_place": tensor.writes and not OPS[tensor.op].writes,
    }


# --- reading -----------------------------------------------------------------------------------


def _read(where: str, path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"{where}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: is not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FormatError(
            f"{where}: is not a saved graph; write one with tensorplug.inspect.graphfile.save"
        )
    if content.get("version") != VERSION:
        raise FormatError(
            f"{where}: has version {content.get('version')!r}, this tensorplug reads {VERSION}; "
            "pip install --upgrade tensorplug"
        )
    _expect(where, content, _TOP, "the file")
    return content


def _expect(where: str, record: Any, fields: Mapping[str, type], what: str) -> None:
    if not isinstance(record, dict):
        raise FormatError(f"{where}: {what} is {record!r}, not an object")
    for name, kind in fields.items():
        if not isinstance(record.get(name), kind):
            raise FormatError(
                f"{where}: {what}: {name} is {record.get(name)!r}, not a {kind.__name__}"
            )


def _build_leaf(where: str, record: Any) -> Tensor:
    _expect(where, record, _LEAF, "a leaf")
    name, shape, role = record["name"], record["shape"], record["role"]
    if role not in _ROLES:
        raise FormatError(f"{where}: leaf {name!r} has the role {role!r}; roles are {_ROLES}")
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape):
        raise FormatError(f"{where}: leaf {name!r} has the shape {shape}")
    flags = _FLAGS.get(role, Flags.NONE)
    tensor = leaf(name, shape, dtype_of(record["dtype"]), flags=flags)
    if tensor.nbytes > LARGEST:
        raise FormatError(f"{where}: leaf {name!r} of shape {shape} has {tensor.nbytes} bytes")
    return tensor


def _place(
    leafs: list[Tensor], content: Mapping[str, Any], memory: BufferType | None
) -> list[Tensor]:
    """Allocate memory for the leafs that had memory when they were saved."""
    if memory is None:
        return leafs
    usages = {"weights": BufferUsage.WEIGHTS, "memory": BufferUsage.ANY}
    for role, usage in usages.items():
        at = [i for i, record in enumerate(content["leafs"]) if record["role"] == role]
        placed, _ = allocate([leafs[i] for i in at], memory, usage=usage)
        for i, tensor in zip(at, placed, strict=True):
            leafs[i] = tensor
    return leafs


def _build_node(where: str, record: Any, tensors: Sequence[Tensor]) -> Tensor:
    _expect(where, record, _NODE, "a node")
    operands = [None if i is None else _pick(where, tensors, i) for i in record["operands"]]
    params = {name: _value(where, value) for name, value in record["params"].items()}
    node = apply(op(record["op"]), *operands, name=record["name"], **params)
    if record.get("in_place"):
        node = in_place(node)
    if [node.dtype.name, list(node.shape)] != [record["dtype"], record["shape"]]:
        raise FormatError(
            f"{where}: {node.op} {node.name!r} gives {node.dtype.name}{list(node.shape)}, and the "
            f"file says {record['dtype']}{record['shape']}; it was made by another version"
        )
    return node


def _pick(where: str, tensors: Sequence[Tensor], index: Any) -> Tensor:
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(tensors):
        raise FormatError(f"{where}: refers to tensor {index!r} of {len(tensors)}")
    return tensors[index]


def _value(where: str, value: Any) -> Value:
    if isinstance(value, list):
        return tuple(_value(where, part) for part in value)
    if value is None or isinstance(value, int | float | bool | str):
        return value
    raise FormatError(f"{where}: {value!r} is not a parameter")
