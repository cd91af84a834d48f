"""Graphs and parts as bytes, for files and for other machines. The bytes hold data, never code.

The first line has the version, the kind, and the length and CRC-32 of the JSON text that follows. A
tensor refers only to tensors before it, so there are no cycles. The reader builds nodes by the
rules of the op table, which check sizes, types and parameters. The results must be equal to what
the sender had.

Bytes from outside raise only FormatError. Until everything is checked, reading takes at most
`EXPANSION` times the number of given bytes, and no memory of devices.
"""

import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, TypeVar

from tensorplug.device.buffer import Buffer, BufferType, BufferUsage
from tensorplug.device.part import Part
from tensorplug.device.placing import allocate
from tensorplug.dtypes import dtype as dtype_of
from tensorplug.errors import FormatError, GraphError
from tensorplug.fusion.formulas import Group, Pattern
from tensorplug.fusion.library import PATTERNS
from tensorplug.fusion.matching import group_of
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.graph import Graph, readers_of
from tensorplug.graph.tensor import MAX_RANK, Flags, Ne, Place, Tensor, Value, contiguous_nb
from tensorplug.ops.table import OPS, apply, in_place, op

VERSION = 1
MOST_BYTES = 1 << 28
"""The largest JSON text that is read, in bytes."""
EXPANSION = 128
"""The most bytes of host memory that reading takes for each given byte."""
DEEPEST = 4
"""The deepest nesting of tuples in a parameter."""
LARGEST = 1 << 62
"""The largest size, stride, offset or count of bytes."""

_HEADER = re.compile(rb"tensorplug wire (\d{1,4}) ([a-z]{1,8}) (\d{1,10}) ([0-9a-f]{8})\n")
_LONGEST_HEADER = 60
_FLAGS = {"input": Flags.INPUT, "param": Flags.PARAM}
_USAGES = {"weights": BufferUsage.WEIGHTS, "memory": BufferUsage.ANY}
_ROLES = (*_FLAGS, *_USAGES, "constant")

T = TypeVar("T")
Content = dict[str, Any]
Numbered = Callable[[Buffer], int]
"""A function that gives the number by which the reader finds a buffer."""


# --- graphs ------------------------------------------------------------------------------------


def pack_graph(graph: Graph) -> bytes:
    """Return the structure of `graph` as bytes, without data.

    Raises GraphError if the graph calls Python functions.
    """
    tensors = _reach(graph.nodes, (*graph.leafs, *graph.nodes))
    index = {tensor: i for i, tensor in enumerate(tensors)}
    return _seal(
        "graph",
        {
            "tensors": _records(tensors, index, set(graph.nodes)),
            "outputs": [index[t] for t in graph.outputs],
            "effects": [index[t] for t in graph.effects],
        },
    )


def unpack_graph(data: bytes, *, memory: BufferType | None = None, where: str = "wire") -> Graph:
    """Return the graph that `pack_graph` packed. Raises FormatError, and OutOfMemory for `memory`.

    With `memory`, tensors that had memory of their own get uninitialised memory of this type.
    Without it they are leafs like inputs.
    """
    reader = _Reader(where, _open("graph", data, where))
    graph = reader.checked(reader.graph)
    if memory is None:
        return graph
    reader.homes = _allocated(reader, memory)
    return reader.checked(reader.graph)


def _allocated(reader: "_Reader", memory: BufferType) -> dict[int, Place]:
    homes: dict[int, Place] = {}
    for role, usage in _USAGES.items():
        at = [i for i, record in enumerate(reader.records) if record.get("role") == role]
        placed, _ = allocate([reader.tensors[i] for i in at], memory, usage=usage)
        homes |= {i: t.place for i, t in zip(at, placed, strict=True) if t.place is not None}
    return homes


# --- parts -------------------------------------------------------------------------------------


def pack_part(part: Part, number: Numbered) -> bytes:
    """Return a part as bytes, with its groups, stages and places. Buffers are numbers.

    A tensor that the part reads from outside becomes a leaf, with the name of its op. Raises
    GraphError if the part calls Python functions.
    """
    tensors = _tensors_of(part)
    index = {tensor: i for i, tensor in enumerate(tensors)}
    if part.stages and tuple(chain.from_iterable(part.stages)) != part.work:
        raise GraphError(f"pack {part!r}: its stages do not have its work in the same order")
    named = ([(n, index[t]) for n, t in group.tensors.items()] for group in part.groups)
    homes = ((i, part.bindings.where(t)) for t, i in index.items() if t.place is not None)
    return _seal(
        "part",
        {
            "tensors": _records(tensors, index, set(part.nodes)),
            "nodes": [index[t] for t in part.nodes],
            "outputs": [index[t] for t in part.outputs],
            "groups": [[g.pattern.name, dict(n)] for g, n in zip(part.groups, named, strict=True)],
            "stages": [len(stage) for stage in part.stages],
            "homes": [[i, number(home.buffer), home.offset] for i, home in homes],
            "places": _places(part, index, number),
        },
    )


def unpack_part(
    data: bytes,
    buffers: Mapping[int, Buffer],
    *,
    patterns: Iterable[Pattern] = PATTERNS,
    where: str = "wire",
) -> Part:
    """Return the part that `pack_part` packed; `buffers` has the buffers by number.

    `patterns` are the patterns of groups that are accepted. Raises FormatError, also for a group
    that does not match its pattern and for a place outside its buffer.
    """
    reader = _Reader(where, _open("part", data, where))
    return reader.checked(lambda: reader.part(buffers, {p.name: p for p in patterns}))


def pack_places(part: Part, number: Numbered) -> bytes:
    """Return the places of the tensors of `part` as bytes, for a reader that has the part."""
    index = {tensor: i for i, tensor in enumerate(_tensors_of(part))}
    return _seal("places", {"places": _places(part, index, number)})


def unpack_places(
    data: bytes, part: Part, buffers: Mapping[int, Buffer], *, where: str = "wire"
) -> Part:
    """Return `part`, from `unpack_part`, with the places that `pack_places` packed.

    Raises FormatError.
    """
    reader = _Reader(where, _open("places", data, where), _tensors_of(part))
    return reader.checked(lambda: part.bind(Bindings(reader.places(buffers))))


def _tensors_of(part: Part) -> list[Tensor]:
    grouped = (t for g in part.groups for t in (*g.tensors.values(), *g.inputs, *g.outputs))
    return _reach(part.nodes, (*part.nodes, *part.leafs, *grouped))


def _places(part: Part, index: Mapping[Tensor, int], number: Numbered) -> list[list[int]]:
    named = ((i, part.bindings.where(t)) for t, i in index.items() if part.bindings.names(t))
    return [[i, number(place.buffer), place.offset] for i, place in named]


# --- writing -----------------------------------------------------------------------------------


def _reach(nodes: Iterable[Tensor], ends: Iterable[Tensor]) -> list[Tensor]:
    """The tensors that `nodes` are built from, sources first. Sources of nodes that are not among
    `nodes` are not included."""
    inside, found, waiting = set(nodes), set[Tensor](), list(ends)
    while waiting:
        tensor = waiting.pop()
        if tensor in found:
            continue
        found.add(tensor)
        if tensor in inside or tensor.is_view:
            waiting.extend(tensor.sources)
        if tensor.view_of is not None:
            waiting.append(tensor.view_of)
    return sorted(found, key=lambda t: t.serial)


def _records(
    tensors: Iterable[Tensor], index: Mapping[Tensor, int], inside: set[Tensor]
) -> list[Content]:
    found = []
    for tensor in tensors:
        record = {"name": tensor.name, **_facts(tensor, index)}
        if not tensor.is_leaf and (tensor in inside or tensor.is_view):
            record |= _node_record(tensor, index)
        elif tensor.is_leaf and tensor.view_of is None:
            record["role"] = _role(tensor)
        else:
            record |= {"made": tensor.op, "writes": tensor.writes}
        found.append(record)
    return found


def _facts(tensor: Tensor, index: Mapping[Tensor, int]) -> Content:
    """Type and layout of a tensor as data: strides if it has gaps, the root if it is a view."""
    found: Content = {"dtype": tensor.dtype.name, "ne": list(tensor.ne), "rank": tensor.rank}
    if tensor.splits_blocks or tensor.nb != contiguous_nb(tensor.dtype, tensor.ne):
        found["nb"] = list(tensor.nb)
    if tensor.view_of is not None:
        found |= {"root": index[tensor.view_of], "offset": tensor.view_offset}
    return found


def _node_record(node: Tensor, index: Mapping[Tensor, int]) -> Content:
    if any(map(callable, node.params.values())):
        raise GraphError(f"pack: {node} calls a Python function, which cannot be packed")
    record: Content = {
        "op": node.op,
        "from": [None if t is None else index[t] for t in node.operands],
        "params": dict(node.params),
    }
    return {**record, "in_place": True} if node.writes and not OPS[node.op].writes else record


def _role(tensor: Tensor) -> str:
    flag = next((role for role, flag in _FLAGS.items() if flag in tensor.flags), "")
    if flag:
        return flag
    if tensor.place is None:
        return "constant"
    return "weights" if tensor.place.buffer.usage is BufferUsage.WEIGHTS else "memory"


def _seal(kind: str, content: Content) -> bytes:
    text = json.dumps(content, separators=(",", ":")).encode()
    if len(text) > MOST_BYTES:
        raise GraphError(f"pack {kind}: {len(text)} bytes; readers accept at most {MOST_BYTES}")
    return f"tensorplug wire {VERSION} {kind} {len(text)} {zlib.crc32(text):08x}\n".encode() + text


# --- reading -----------------------------------------------------------------------------------


def _open(kind: str, data: bytes, where: str) -> Content:
    found = _HEADER.match(data[:_LONGEST_HEADER])
    if found is None:
        raise FormatError(f"{where}: is not a {kind} that tensorplug packed")
    version, kind_here, size, crc = (group.decode() for group in found.groups())
    if int(version) != VERSION:
        raise FormatError(
            f"{where}: has version {version}, this tensorplug reads {VERSION}; "
            "pip install --upgrade tensorplug"
        )
    if kind_here != kind:
        raise FormatError(f"{where}: holds a {kind_here}, not a {kind}")
    have = len(data) - found.end()
    if int(size) != have or have > MOST_BYTES:
        raise FormatError(
            f"{where}: is damaged: {have} bytes follow its first line, which says {size}, of at "
            f"most {MOST_BYTES}; write it again"
        )
    text = data[found.end() :]
    if f"{zlib.crc32(text):08x}" != crc:
        raise FormatError(f"{where}: is damaged: its checksum is wrong; write it again")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise FormatError(f"{where}: is not a JSON object")
    return content


class _Reader:
    """Builds the tensors, graph or part of a packed text, and checks everything."""

    def __init__(self, where: str, content: Content, tensors: Sequence[Tensor] = ()) -> None:
        self.where = where
        self.content = content
        self.homes: dict[int, Place] = {}
        """Places of persistent tensors, by the tensor's number."""
        self.tensors = list(tensors)
        self._index: dict[Tensor, int] = {}

    @property
    def records(self) -> list[Content]:
        """The records of tensors in the text."""
        return self._list(self.content, "tensors")

    def checked(self, build: Callable[[], T]) -> T:
        """Return the result of `build`; any error in it becomes a FormatError."""
        try:
            return build()
        except FormatError:
            raise
        except Exception as error:  # rules of ops may fail on values that no builder passes
            raise FormatError(f"{self.where}: {error}") from error

    def graph(self) -> Graph:
        """Return the graph of the text."""
        self._build()
        outputs, effects = (self._picked(self.content, key) for key in ("outputs", "effects"))
        return Graph(outputs, effects=effects)

    def part(self, buffers: Mapping[int, Buffer], patterns: Mapping[str, Pattern]) -> Part:
        """Return the part of the text."""
        self._build()
        self.homes = self._placed("homes", buffers)
        if self.homes:
            self._build()
        nodes = self._nodes()
        outputs = self._picked(self.content, "outputs")
        groups = self._groups(patterns, nodes, outputs)
        part = Part(nodes, Bindings(self.places(buffers)), outputs=outputs, groups=groups)
        stages = self._stages(part)
        return Part(nodes, part.bindings, outputs=outputs, groups=groups, stages=stages)

    def places(self, buffers: Mapping[int, Buffer]) -> dict[Tensor, Place]:
        """Return the places of tensors in the text."""
        return {self.tensors[i]: place for i, place in self._placed("places", buffers).items()}

    # --- tensors ---------------------------------------------------------------------------

    def _build(self) -> None:
        self.tensors, self._index = [], {}
        for number, record in enumerate(self.records):
            what = f"tensor {number}"
            if not isinstance(record, dict):
                raise self._wrong(f"{what} is {_short(record)}, not an object")
            tensor = self._tensor(number, record, what)
            root = tensor.view_of
            if root is not None and not 0 <= tensor.view_offset <= root.nbytes - tensor.nbytes:
                raise self._wrong(
                    f"{what} has bytes {tensor.view_offset} to "
                    f"{tensor.view_offset + tensor.nbytes} of {root}, which has {root.nbytes}"
                )
            self._index[tensor] = number
            self.tensors.append(tensor)

    def _tensor(self, number: int, record: Content, what: str) -> Tensor:
        if not isinstance(record.get("name"), str):
            raise self._wrong(f"{what}: its name is {_short(record.get('name'))}, not a text")
        if "op" in record:
            return self._node(record, what)
        kind = dtype_of(self._text(record, "dtype", what))
        ne = self._four(record, "ne", what)
        gapless = contiguous_nb(kind, ne)
        nb = self._four(record, "nb", what) if "nb" in record else gapless
        root = self._pick(record["root"], what) if "root" in record else None
        if root is not None and root.view_of is not None:
            raise self._wrong(f"{what} is a view of a view, {root}")
        flags, made = Flags.NONE, "none"
        if "made" in record:
            made = self._text(record, "made", what)
            made = made if made == "none" else op(made).name
        elif record.get("role") in _ROLES:
            flags = _FLAGS.get(record["role"], Flags.NONE)
        else:
            raise self._wrong(
                f"{what} has the role {_short(record.get('role'))}; roles are {_ROLES}"
            )
        tensor = Tensor(
            *(kind, ne, nb, self._number(record.get("rank"), f"{what}: rank", MAX_RANK), made),
            view_of=root,
            view_offset=self._number(record.get("offset", 0), f"{what}: offset"),
            writes=record.get("writes") is True and root is not None,
            flags=flags,
            name=record["name"],
            place=self.homes.get(number),
        )
        if tensor.nbytes > LARGEST or any(n != 1 for n in ne[tensor.rank :]):
            raise self._wrong(f"{what} {tensor} has sizes {ne}, {tensor.nbytes} bytes")
        return tensor

    def _node(self, record: Content, what: str) -> Tensor:
        operands = [
            None if i is None else self._pick(i, what) for i in self._list(record, "from", what)
        ]
        params = record.get("params")
        if not isinstance(params, dict):
            raise self._wrong(f"{what}: its parameters are {_short(params)}, not an object")
        values = {name: self._value(value, what) for name, value in params.items()}
        if "name" in values:
            raise self._wrong(f"{what}: name is not a parameter")
        record_of_op = op(self._text(record, "op", what))
        node = apply(record_of_op, *operands, name=record["name"], **values)
        if record.get("in_place") is True:
            node = in_place(node)
        self._check_facts(node, record, what)
        return node

    def _check_facts(self, node: Tensor, record: Content, what: str) -> None:
        """Raise FormatError if a built node differs from the sender's: its rules may be others."""
        for fact, value in _facts(node, self._index).items():
            if record.get(fact) != value or type(record[fact]) is not type(value):
                raise self._wrong(
                    f"{what}, {node}: its {fact} is {value} here, but the sender had "
                    f"{_short(record.get(fact))}; use the same version of tensorplug on both sides"
                )
        if node.nbytes > LARGEST:
            raise self._wrong(f"{what}, {node}, has {node.nbytes} bytes")

    # --- parts -----------------------------------------------------------------------------

    def _nodes(self) -> list[Tensor]:
        """The nodes in execution order: each node comes after its sources."""
        nodes = self._picked(self.content, "nodes")
        rank = {node: i for i, node in enumerate(nodes)}
        if len(rank) < len(nodes):
            raise self._wrong("a node is twice in the order of nodes")
        packed = {t for t, r in zip(self.tensors, self.records, strict=True) if "op" in r}
        for i, node in enumerate(nodes):
            if node not in packed:
                raise self._wrong(f"{node} must be computed, but its sources are missing")
            for source in node.sources:
                if max(rank.get(source, -1), rank.get(source.root, -1)) >= i:
                    raise self._wrong(f"{node} is computed before {source}, which it reads")
        return nodes

    def _groups(
        self, patterns: Mapping[str, Pattern], nodes: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> list[Group]:
        found: list[Group] = []
        taken: set[Tensor] = set()
        readers = readers_of(self.tensors)
        for record in self._list(self.content, "groups"):
            if not isinstance(record, list) or len(record) != 2 or not isinstance(record[1], dict):
                raise self._wrong(f"a group is {_short(record)}, not a name with tensors")
            name, named = record
            if not isinstance(name, str) or name not in patterns:
                raise self._wrong(f"a group of the pattern {_short(name)}, which is not known here")
            tensors = {n: self._pick(i, f"group {name}") for n, i in named.items()}
            group = group_of(patterns[name], tensors, nodes, readers, outputs, taken)
            if group is None:
                raise self._wrong(f"the tensors of a group {name} do not match its pattern")
            taken.update(group.nodes)
            found.append(group)
        return found

    def _stages(self, part: Part) -> list[tuple[Tensor | Group, ...]]:
        sizes = [
            self._number(n, "a stage", len(part.work), 1)
            for n in self._list(self.content, "stages")
        ]
        if sizes and sum(sizes) != len(part.work):
            raise self._wrong(
                f"{sum(sizes)} pieces of work in stages, {len(part.work)} in the part"
            )
        ends = accumulate(sizes)
        return [part.work[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def _placed(self, key: str, buffers: Mapping[int, Buffer]) -> dict[int, Place]:
        found: dict[int, Place] = {}
        for record in self._list(self.content, key):
            if not isinstance(record, list) or len(record) != 3:
                raise self._wrong(f"{key}: {_short(record)}, not a tensor, buffer and offset")
            number = self._number(record[0], f"{key}: tensor", len(self.tensors) - 1)
            buffer = buffers.get(self._number(record[1], f"{key}: buffer"))
            offset = self._number(record[2], f"{key}: offset")
            tensor = self.tensors[number]
            if buffer is None or buffer.closed:
                raise self._wrong(f"{tensor} lies in buffer {record[1]}, which is not open here")
            memory = buffer.type
            whole = tensor.view_of is None
            size = memory.alloc_size(tensor) if whole else tensor.nbytes
            if offset + size > buffer.size or (whole and offset % memory.alignment):
                raise self._wrong(
                    f"{tensor} cannot lie at byte {offset} of {buffer!r}: it needs {size} bytes at "
                    f"a multiple of {memory.alignment}"
                )
            if number in found:
                raise self._wrong(f"{tensor} lies at two places")
            found[number] = Place(buffer, offset)
        return found

    # --- values ----------------------------------------------------------------------------

    def _wrong(self, problem: str) -> FormatError:
        return FormatError(f"{self.where}: {problem}")

    def _list(self, record: Content, key: str, what: str = "the text") -> list[Any]:
        found = record.get(key)
        if not isinstance(found, list):
            raise self._wrong(f"{what}: {key} is {_short(found)}, not a list")
        return found

    def _text(self, record: Content, key: str, what: str) -> str:
        found = record.get(key)
        if not isinstance(found, str):
            raise self._wrong(f"{what}: {key} is {_short(found)}, not a text")
        return found

    def _number(self, value: Any, what: str, most: int = LARGEST, least: int = 0) -> int:
        if type(value) is not int or not least <= value <= most:
            raise self._wrong(f"{what} is {_short(value)}, not a number from {least} to {most}")
        return value

    def _four(self, record: Content, key: str, what: str) -> Ne:
        values = self._list(record, key, what)
        if len(values) != MAX_RANK:
            raise self._wrong(f"{what}: {key} has {len(values)} numbers, not {MAX_RANK}")
        a, b, c, d = (self._number(n, f"{what}: {key}") for n in values)
        return (a, b, c, d)

    def _pick(self, index: Any, what: str) -> Tensor:
        if type(index) is not int or not 0 <= index < len(self.tensors):
            raise self._wrong(f"{what} refers to tensor {_short(index)} of {len(self.tensors)}")
        return self.tensors[index]

    def _picked(self, record: Content, key: str) -> list[Tensor]:
        return [self._pick(i, key) for i in self._list(record, key)]

    def _value(self, value: Any, what: str, depth: int = 0) -> Value:
        if isinstance(value, list) and depth < DEEPEST:
            return tuple(self._value(entry, what, depth + 1) for entry in value)
        if type(value) is int:
            return self._number(value, f"{what}: a parameter", LARGEST, -LARGEST)
        if value is None or isinstance(value, float | bool | str):
            return value
        raise self._wrong(f"{what}: {_short(value)} is not a parameter")


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, list | dict) else type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."
