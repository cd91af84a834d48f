"""Parts as bytes, with the places of their tensors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain

from tensorplug.device.buffer import Buffer
from tensorplug.device.part import Part
from tensorplug.device.wire.fields import short
from tensorplug.device.wire.sealing import seal, unseal
from tensorplug.device.wire.tensors import TensorReader, reach, records
from tensorplug.errors import GraphError
from tensorplug.fusion.formulas import Group, Pattern
from tensorplug.fusion.library import PATTERNS
from tensorplug.fusion.matching import group_of
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.graph import readers_of
from tensorplug.graph.tensor import Place, Tensor
from tensorplug.ops.table import OPS

Numbered = Callable[[Buffer], int | None]
"""A function that gives the number by which the reader finds a buffer, None if the reader has none.

A tensor in a buffer without a number has no place for the reader, and the work must not read it.
"""


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
    return seal(
        "part",
        {
            "tensors": records(tensors, index, set(part.nodes)),
            "nodes": [index[t] for t in part.nodes],
            "outputs": [index[t] for t in part.outputs],
            "groups": [[g.pattern.name, dict(n)] for g, n in zip(part.groups, named, strict=True)],
            "stages": [len(stage) for stage in part.stages],
            "homes": _numbered(homes, number),
            "places": _places(part, index, number),
        },
    )


def unpack_part(
    data: bytes,
    buffers: Mapping[int, Buffer],
    *,
    patterns: Iterable[Pattern] = PATTERNS,
) -> Part:
    """Return the part that `pack_part` packed; `buffers` has the buffers by number.

    `patterns` are the patterns of groups that are accepted. Raises FormatError, also for a group
    that does not match its pattern and for a place outside its buffer.
    """
    reader = _Reader("wire", unseal("part", data, "wire"))
    return reader.checked(lambda: reader.part(buffers, {p.name: p for p in patterns}))


def pack_places(part: Part, number: Numbered) -> bytes:
    """Return the places of the tensors of `part` as bytes, for a reader that has the part."""
    index = {tensor: i for i, tensor in enumerate(_tensors_of(part))}
    return seal("places", {"places": _places(part, index, number)})


def unpack_places(data: bytes, part: Part, buffers: Mapping[int, Buffer]) -> Part:
    """Return `part`, from `unpack_part`, with the places that `pack_places` packed.

    Raises FormatError.
    """
    reader = _Reader("wire", unseal("places", data, "wire"), _tensors_of(part))
    return reader.checked(lambda: part.bind(Bindings(reader.places(buffers))))


def _tensors_of(part: Part) -> list[Tensor]:
    grouped = (t for g in part.groups for t in (*g.tensors.values(), *g.inputs, *g.outputs))
    return reach(part.nodes, (*part.nodes, *part.leafs, *grouped))


def _places(part: Part, index: Mapping[Tensor, int], number: Numbered) -> list[list[int]]:
    named = ((i, part.bindings.where(t)) for t, i in index.items() if part.bindings.names(t))
    return _numbered(named, number)


def _numbered(places: Iterable[tuple[int, Place]], number: Numbered) -> list[list[int]]:
    found = ((i, number(place.buffer), place.offset) for i, place in places)
    return [[i, buffer, offset] for i, buffer, offset in found if buffer is not None]


class _Reader(TensorReader):
    """Builds the part of a packed text."""

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
                raise self._wrong(f"a group is {short(record)}, not a name with tensors")
            name, named = record
            if not isinstance(name, str) or name not in patterns:
                raise self._wrong(f"a group of the pattern {short(name)}, which is not known here")
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
                raise self._wrong(f"{key}: {short(record)}, not a tensor, buffer and offset")
            number = self._number(record[0], f"{key}: tensor", len(self.tensors) - 1)
            buffer = buffers.get(self._number(record[1], f"{key}: buffer"))
            offset = self._number(record[2], f"{key}: offset")
            tensor = self.tensors[number]
            if buffer is None or buffer.closed:
                raise self._wrong(f"{tensor} lies in buffer {record[1]}, which is not open here")
            memory = buffer.type
            whole = tensor.view_of is None
            # A tensor that other work computes has no sources here, of which its size may follow.
            outside = not tensor.is_leaf and OPS[tensor.op].sources and not tensor.sources
            size = memory.alloc_size(tensor) if whole and not outside else tensor.nbytes
            if offset + size > buffer.size or (whole and offset % memory.alignment):
                raise self._wrong(
                    f"{tensor} cannot lie at byte {offset} of {buffer!r}: it needs {size} bytes at "
                    f"a multiple of {memory.alignment}"
                )
            if number in found:
                raise self._wrong(f"{tensor} lies at two places")
            found[number] = Place(buffer, offset)
        return found
