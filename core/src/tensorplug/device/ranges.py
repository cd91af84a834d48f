"""Byte ranges: the bytes that work reads and writes, and conflicts between accesses.

Two accesses conflict if they share a byte and one of them is a write. Conflicting accesses of two
streams, or of a stream and the host, must be ordered. `tensorplug.inspect.sanitizer` checks this.
"""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tensorplug.device.backend import End
from tensorplug.device.buffer import Buffer
from tensorplug.fusion.formulas import Group
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Place, Tensor


class Host(enum.Enum):
    """The host: the thread of the program as an actor, and host memory as an address space."""

    THREAD = "the host"
    MEMORY = "host memory"


AddressSpace = Buffer | Host | Tensor
"""The address space of a range: a buffer, host memory, or a tensor that has no memory yet."""


# --- ranges ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes `start` to `end` of a buffer or of a tensor, or addresses in host memory.

    With a `stride`, the range has only the first `width` bytes of every `stride` bytes from `start`
    on.
    """

    buffer: "AddressSpace"
    start: int
    end: int
    width: int = 0
    stride: int = 0

    def overlaps(self, other: "Range") -> bool:
        """True if the ranges may share a byte. Exact for columns with one stride; otherwise the
        test compares only the first and last bytes."""
        if self.buffer is not other.buffer or self.start >= other.end or other.start >= self.end:
            return False
        stride = self.stride or other.stride
        mine, theirs = self._width(stride), other._width(stride)
        if not mine or not theirs:
            return True
        gap = (other.start - self.start) % stride
        return gap < mine or gap + theirs > stride

    def _width(self, stride: int) -> int:
        """The bytes used of each `stride`, or 0 if the range is not made of columns of it."""
        if self.stride:
            return self.width if self.stride == stride else 0
        size = self.end - self.start
        return size if size <= stride else 0

    def __str__(self) -> str:
        columns = f", {self.width} of every {self.stride}" if self.stride else ""
        where = self.buffer.value if isinstance(self.buffer, Host) else repr(self.buffer)
        return f"bytes {self.start} to {self.end}{columns} of {where}"


def range_of(tensor: Tensor, place: Place) -> Range:
    """The bytes of `tensor` at `place`: a contiguous range, or columns."""
    return range_in(place.buffer, place.offset, tensor)


def range_in(memory: AddressSpace, offset: int, tensor: Tensor) -> Range:
    """The bytes of `tensor` at `offset` of `memory`: a contiguous range, or columns."""
    end = offset + tensor.nbytes
    width, stride = 0, tensor.nb[1]
    if tensor.has_contiguous_rows and tensor.rows > 1:
        row = tensor.dtype.row_size(tensor.ne[0])
        outer = zip(tensor.ne[1:], tensor.nb[1:], strict=True)
        if row < stride and all(b % stride == 0 for n, b in outer if n > 1):
            width = row
    return Range(memory, offset, end, width, stride if width else 0)


def range_at(end: End, size: int) -> Range:
    """The `size` bytes from a place in a buffer on, or of host memory."""
    if isinstance(end, Place):
        return Range(end.buffer, end.offset, end.offset + size)
    address = np.frombuffer(end, np.uint8).ctypes.data if size else 0
    return Range(Host.MEMORY, address, address + size)


# --- accesses ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Access:
    """An access to a range of bytes: `work` describes the reader or writer, `tensor` the data."""

    range: Range
    tensor: str
    work: str
    writes: bool = False

    def __str__(self) -> str:
        verb = "writes" if self.writes else "reads"
        return f"{self.work} {verb} {self.tensor or 'memory'}, {self.range}"


def accesses(work: Tensor | Group, bindings: Bindings) -> tuple[Access, ...]:
    """The accesses of a node or a fused group: first reads, then writes, scratch memory included.

    Nodes without memory (inner nodes of a group, nodes private to a plan) and tensors without
    elements have no accesses.
    """
    name = work.op if isinstance(work, Tensor) else str(work)
    return tuple(
        Access(span, str(tensor), name, writes=writes)
        for tensor, span, writes in ranges(work, bindings)
    )


def ranges(work: Tensor | Group, bindings: Bindings) -> Iterator[tuple[Tensor, Range, bool]]:
    """As `accesses`: for each access the tensor, its bytes, and True for a write."""
    for writes, tensors in enumerate(touched(work)):
        for tensor in tensors:
            if tensor.nbytes and bindings.has(tensor):
                yield tensor, _range(tensor, bindings.where(tensor), writes=writes > 0), writes > 0


def _range(tensor: Tensor, place: Place, *, writes: bool) -> Range:
    if writes and tensor.view_of is None and not tensor.is_leaf:
        # The scratch memory of a kernel lies behind the result and is written with it.
        return range_at(place, place.buffer.type.alloc_size(tensor))
    return range_of(tensor, place)


def touched(work: Tensor | Group) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The tensors that a node or a fused group reads, each once, and those that it writes."""
    if isinstance(work, Tensor):
        return tuple(dict.fromkeys(work.sources)), (work, *work.also_writes)
    made = tuple(node for node in work.nodes if node not in work.inner)
    return work.inputs, (*made, *(t for node in made for t in node.also_writes))


def clash(a: Access, b: Access) -> bool:
    """True if two accesses must be ordered: one writes bytes that the other reads or writes."""
    return (a.writes or b.writes) and a.range.overlaps(b.range)


def clash_within_stage(
    works: Iterable[Tensor | Group], bindings: Bindings
) -> tuple[Access, Access] | None:
    """Two conflicting accesses of different pieces of work, or None if all may run in parallel."""
    found = [(i, a) for i, work in enumerate(works) for a in accesses(work, bindings)]
    found.sort(key=lambda item: item[1].range.start)
    open_: dict[AddressSpace, list[tuple[int, Access]]] = {}
    for number, access in found:
        start = access.range.start
        near = [item for item in open_.get(access.range.buffer, ()) if item[1].range.end > start]
        for other, earlier in near:
            if other != number and clash(earlier, access):
                return earlier, access
        open_[access.range.buffer] = [*near, (number, access)]
    return None
