"""Questions about work and memory: packed by the driver, answered by the actor's device.

A question is a part without real memory: each tensor lies in a stand-in for its kind of memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tensorplug.device import (
    Bindings,
    Buffer,
    BufferType,
    BufferUsage,
    Group,
    Part,
    Place,
    Tensor,
    UnallocatedBuffer,
    leaf,
)
from tensorplug.device.wire import pack_part, unpack_part
from tensorplug.errors import FormatError, GraphError, Refusal, Unsupported
from tensorplug_ray.patterns import KNOWN

ELSEWHERE = 0
"""The number of the stand-in for memory of any other device."""
_USAGES = tuple(BufferUsage)
_HUGE = 1 << 62


def number_of(memory: int, usage: BufferUsage) -> int:
    """The number of the stand-in for memory of the device's buffer type `memory`."""
    return 1 + memory * len(_USAGES) + _USAGES.index(usage)


# --- the driver's side ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Number:
    """Takes the place of a buffer in the part of a question."""

    number: int


class Questions:
    """Asks each question once: later ones of the same structure get the same answer."""

    def __init__(
        self, call: Callable[..., Any], number: Callable[[BufferType], int | None]
    ) -> None:
        """`call` asks the actor; `number` numbers the buffer types of the device."""
        self._call = call
        self._number = number
        self._answers: dict[object, Any] = {}
        self.asked = 0

    def refusal(
        self, work: Tensor | Group, source_types: Mapping[Tensor, BufferType]
    ) -> Refusal | None:
        """The reason why the device does not compute a node or a group."""
        try:
            reason = self._answer("refuses", _part_of(work), source_types)
        except (GraphError, FormatError) as error:  # a function, or an op that is unknown there
            return Refusal(str(error))
        return None if reason is None else Refusal(reason)

    def of_node(self, what: str, node: Tensor) -> Any:
        """The answer to a question of `_NODE` about a node."""
        return self._answer(what, Part((node,), outputs=(node,)), {})

    def of_memory(self, what: str, tensor: Tensor, memory: int) -> Any:
        """The answer to a question of `_MEMORY` about a tensor in a buffer type."""
        made = Part(() if tensor.is_leaf or tensor.is_view else (tensor,), outputs=(tensor,))
        try:
            return self._answer(what, made, {}, memory)
        except (GraphError, FormatError):  # as in `refusal`; its sizes are known all the same
            plain = leaf(tensor.name, tensor.shape, tensor.dtype)
            return self._answer(what, Part((), outputs=(plain,)), {}, memory)

    def _answer(
        self, what: str, part: Part, source_types: Mapping[Tensor, BufferType], memory: int = 0
    ) -> Any:
        numbers = self._numbers(part, source_types)
        key = (what, memory, part.key, *(_seen(t, numbers) for t in part.leafs))
        if key not in self._answers:
            places = {t: Place(cast("Buffer", _Number(n)), 0) for t, n in numbers.items()}
            data = pack_part(part.bind(Bindings(places)), lambda b: cast("Any", b).number)
            self.asked += 1
            self._answers[key] = self._call("answer", what, data, memory)
        return self._answers[key]

    def _numbers(self, part: Part, source_types: Mapping[Tensor, BufferType]) -> dict[Tensor, int]:
        """The stand-in of each root that lies in known memory."""
        found: dict[Tensor, int] = {}
        for tensor in (*part.leafs, *part.nodes):
            root = tensor.root
            kind = source_types.get(tensor) or source_types.get(root)
            usage = BufferUsage.ANY
            if root.place is not None:
                kind, usage = root.place.buffer.type, root.place.buffer.usage
            if kind is None:
                continue
            memory = self._number(kind)
            found[root] = ELSEWHERE if memory is None else number_of(memory, usage)
        return found


def _part_of(work: Tensor | Group) -> Part:
    if isinstance(work, Tensor):
        return Part((work,), outputs=(work,))
    return Part(work.nodes, outputs=work.outputs, groups=(work,))


def _seen(leaf: Tensor, numbers: Mapping[Tensor, int]) -> object:
    """What a question says of a leaf beyond the key of its part."""
    root = leaf.root
    return (root.dtype.name, root.ne, root.nb, numbers.get(root))


# --- the actor's side ----------------------------------------------------------------------------


class _Elsewhere(BufferType):
    name = "memory of another device"

    def __init__(self) -> None:
        self.device = cast("Any", None)

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        raise Unsupported(f"{self.name}: is not here")


class Answers:
    """Answers questions about a device; `stream` is a stream of it."""

    def __init__(self, stream: Any, types: Sequence[BufferType]) -> None:
        self._stream = stream
        self._types = types
        self._standins: dict[int, Buffer] = {ELSEWHERE: UnallocatedBuffer(_Elsewhere(), _HUGE)}
        for i, kind in enumerate(types):
            for usage in BufferUsage:
                self._standins[number_of(i, usage)] = UnallocatedBuffer(kind, _HUGE, usage)

    def answer(self, what: str, data: bytes, memory: int) -> Any:
        """Answer a question. Raises FormatError."""
        part = unpack_part(data, self._standins, patterns=KNOWN.values())
        if what == "refuses":
            return self._refuses(part)
        if what == "rounding" and part.nodes:
            return int(self._stream.rounding(part.nodes[-1]))
        if what not in _MEMORY or not 0 <= memory < len(self._types) or not part.outputs:
            raise FormatError(f"question {what!r} about memory {memory}: is not known here")
        return _MEMORY[what](self._types[memory], part.outputs[0])

    def _refuses(self, part: Part) -> str | None:
        device, bindings = self._stream.device, part.bindings
        types = {t: bindings.where(t).buffer.type for t in part.leafs if bindings.has(t)}
        if part.groups:
            found = device.refuses_group(part.groups[0], types)
        else:
            found = device.refuses(part.nodes[-1], types)
        return None if found is None else str(found.reason)

    def close(self) -> None:
        """Close the stand-ins, which are children of the device."""
        for standin in self._standins.values():
            standin.close()


_MEMORY: Mapping[str, Callable[[BufferType, Tensor], Any]] = {
    "alloc_size": lambda kind, tensor: kind.alloc_size(tensor),
    "supports": lambda kind, tensor: bool(kind.supports(tensor)),
    "prefers": lambda kind, tensor: bool(kind.prefers(tensor)),
}
"""Questions about a tensor in a kind of memory."""
