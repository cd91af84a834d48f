"""Tensors as records of a packed text, and the reader that builds tensors from their records."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorplug.device.buffer import BufferUsage
from tensorplug.device.wire.fields import LARGEST, Content, Fields, short
from tensorplug.dtypes import dtype as dtype_of
from tensorplug.errors import GraphError
from tensorplug.graph.tensor import MAX_RANK, Flags, Place, Tensor, contiguous_nb
from tensorplug.ops.copy import computed_over
from tensorplug.ops.table import OPS, apply, op, replaceable_sources

_FLAGS = {"input": Flags.INPUT, "param": Flags.PARAM}
USAGES = {"weights": BufferUsage.WEIGHTS, "memory": BufferUsage.ANY}
"""The usage of the memory of a leaf, by its role."""
_ROLES = (*_FLAGS, *USAGES, "constant")


def reach(nodes: Iterable[Tensor], ends: Iterable[Tensor]) -> list[Tensor]:
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


def records(
    tensors: Iterable[Tensor], index: Mapping[Tensor, int], inside: set[Tensor]
) -> list[Content]:
    """One record for each of `tensors`: how it is made if it is a view or is in `inside`, otherwise
    what it is. `index` has the numbers of tensors."""
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


class TensorReader(Fields):
    """Builds the tensors of a packed text, and checks everything."""

    def __init__(self, where: str, content: Content, tensors: Sequence[Tensor] = ()) -> None:
        super().__init__(where, content)
        self.homes: dict[int, Place] = {}
        """Places of persistent tensors, by the tensor's number."""
        self.tensors = list(tensors)
        self._index: dict[Tensor, int] = {}

    @property
    def records(self) -> list[Content]:
        """The records of tensors in the text."""
        return self._list(self.content, "tensors")

    def _build(self) -> None:
        self.tensors, self._index = [], {}
        for number, record in enumerate(self.records):
            what = f"tensor {number}"
            if not isinstance(record, dict):
                raise self._wrong(f"{what} is {short(record)}, not an object")
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
            raise self._wrong(f"{what}: its name is {short(record.get('name'))}, not a text")
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
                f"{what} has the role {short(record.get('role'))}; roles are {_ROLES}"
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
            raise self._wrong(f"{what}: its parameters are {short(params)}, not an object")
        values = {name: self._value(value, what) for name, value in params.items()}
        if "name" in values:
            raise self._wrong(f"{what}: name is not a parameter")
        record_of_op = op(self._text(record, "op", what))
        node = apply(record_of_op, *operands, name=record["name"], **values)
        if record.get("in_place") is True:
            node = computed_over(node, node.operands, self._target(node, record, what))
        self._check_facts(node, record, what)
        return node

    def _target(self, node: Tensor, record: Content, what: str) -> Tensor:
        """The source that `node` was computed over by the sender."""
        wanted = (record.get("root"), record.get("offset"))
        for source in replaceable_sources(node):
            if (self._index[source.root], source.view_offset) == wanted and source.same_layout(
                node
            ):
                return source
        raise self._wrong(
            f"{what}, {node}, is in place, but over none of its sources; use the same version of "
            "tensorplug on both sides"
        )

    def _check_facts(self, node: Tensor, record: Content, what: str) -> None:
        """Raise FormatError if a built node differs from the sender's: its rules may be others."""
        for fact, value in _facts(node, self._index).items():
            if record.get(fact) != value or type(record[fact]) is not type(value):
                raise self._wrong(
                    f"{what}, {node}: its {fact} is {value} here, but the sender had "
                    f"{short(record.get(fact))}; use the same version of tensorplug on both sides"
                )
        if node.nbytes > LARGEST:
            raise self._wrong(f"{what}, {node}, has {node.nbytes} bytes")

    def _pick(self, index: Any, what: str) -> Tensor:
        if type(index) is not int or not 0 <= index < len(self.tensors):
            raise self._wrong(f"{what} refers to tensor {short(index)} of {len(self.tensors)}")
        return self.tensors[index]

    def _picked(self, record: Content, key: str) -> list[Tensor]:
        return [self._pick(i, key) for i in self._list(record, key)]
