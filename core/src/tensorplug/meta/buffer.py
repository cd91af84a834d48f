"""Buffers of a meta device: memory of several devices that holds copies or slices of tensors."""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from tensorplug.device.buffer import Buffer, BufferType, BufferUsage
from tensorplug.device.placing import align
from tensorplug.graph.tensor import Array, Place, Tensor, array_view
from tensorplug.meta.local import like, local_ne
from tensorplug.meta.state import WHOLE, Partition

if TYPE_CHECKING:
    from tensorplug.meta.device import MetaDevice


@dataclass(frozen=True, slots=True)
class Region:
    """The bytes `offset` to `end` of a meta buffer, which hold one tensor cut as `state` says.

    `slices` has one tensor for each device, placed in memory of that device.
    """

    offset: int
    end: int
    tensor: Tensor
    state: Partition
    slices: tuple[Tensor, ...]

    def holds(self, tensor: Tensor, offset: int) -> bool:
        """True if the region holds a tensor with the layout of `tensor` at `offset`."""
        return offset == self.offset and self.tensor.same_layout(tensor)

    def read(self) -> Array:
        """Gather the slices: return the bytes of the whole tensor, uint8."""
        out = np.empty(self.tensor.nbytes, np.uint8)
        array = array_view(self.tensor, out, 0)
        for d, part in enumerate(self.slices):
            if part.size:
                assert part.place is not None
                data = part.place.buffer.read(part.place.offset, part.nbytes)
                put(array, part, self.state, d, array_view(part, data, 0))
        return out

    def write(self, data: Array) -> None:
        """Scatter `data`, the bytes of the whole tensor, to the slices."""
        array = array_view(self.tensor, data, 0)
        for d, part in enumerate(self.slices):
            if part.size:
                assert part.place is not None
                mine = np.ascontiguousarray(take(array, part, self.state, d))
                part.place.buffer.write(part.place.offset, mine.reshape(-1).view(np.uint8))


def take(whole: Array, part: Tensor, state: Partition, device: int) -> Array:
    """Return one device's slice of `whole`, an array made by `array_view`."""
    if not isinstance(state.axis, int):
        return whole
    axis, per, unit = _along(whole, part, state.axis)
    ranges = [np.arange(a // per * unit, (a + n) // per * unit) for a, n in state.pieces(device)]
    return np.take(whole, np.concatenate(ranges), axis)


def put(whole: Array, part: Tensor, state: Partition, device: int, data: Array) -> None:
    """Copy `data`, one device's slice, into `whole`, an array of the whole tensor."""
    if not isinstance(state.axis, int):
        whole[...] = data
        return
    axis, per, unit = _along(whole, part, state.axis)
    done = 0
    for start, size in state.pieces(device):
        count = size // per * unit
        here, there = (slice(None),) * axis, start // per * unit
        whole[(*here, slice(there, there + count))] = data[(*here, slice(done, done + count))]
        done += count


def _along(whole: Array, part: Tensor, axis: int) -> tuple[int, int, int]:
    """NumPy's number of `axis`, then the elements of the tensor and of the array in one step."""
    block = axis == 0 and part.dtype.is_block
    return whole.ndim - 1 - axis, *((part.dtype.block, part.dtype.size) if block else (1, 1))


class MetaBufferType(BufferType):
    """The memory of a meta device: one buffer type on each of its devices."""

    only_shared = True

    device: "MetaDevice"

    def __init__(self, device: "MetaDevice", kinds: Sequence[BufferType]) -> None:
        super().__init__(device)
        self.kinds = tuple(kinds)
        self.name = device.name
        self.alignment = max(kind.alignment for kind in kinds)
        self.max_size = min(kind.max_size for kind in kinds)

    def supports(self, tensor: Tensor) -> bool:
        return all(kind.supports(tensor) for kind in self.kinds)

    @property
    def parts(self) -> Sequence[BufferType]:
        return self.kinds

    def unallocated(self, size: int, usage: BufferUsage = BufferUsage.ANY) -> Buffer:
        return MetaBuffer(self, size, usage, None, make=BufferType.unallocated)

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        return MetaBuffer(self, size, usage, alloc_all(self.kinds, size, usage))

    def _alloc_for(self, tensors: Sequence[Tensor], size: int, usage: BufferUsage) -> Buffer:
        if usage is BufferUsage.COMPUTE or all(
            self.device.partition_of(t) == WHOLE for t in tensors
        ):
            return self._alloc(size, usage)
        return MetaBuffer(self, size, usage, None)

    def _alloc_size(self, tensor: Tensor) -> int:
        return max(kind.alloc_size(tensor) for kind in self.kinds)


Make = Callable[[BufferType, int, BufferUsage], Buffer]
"""Makes a buffer of a kind."""


def alloc_all(
    kinds: Sequence[BufferType], size: int, usage: BufferUsage, make: Make = BufferType.alloc
) -> tuple[Buffer, ...]:
    """Allocate a buffer of each type. An error, such as OutOfMemory, frees those already made."""
    made: list[Buffer] = []
    try:
        made.extend(make(kind, size, usage) for kind in kinds)
    except BaseException:
        for buffer in made:
            buffer.close()
        raise
    return tuple(made)


class MetaBuffer(Buffer):
    """Bytes that are mirrored on each device, except tensors that are cut into slices.

    A buffer made for tensors of which some are cut has memory for the slices only. The mirrored
    bytes get memory when they are first written (`copies`).
    """

    type: MetaBufferType

    def __init__(
        self,
        buffer_type: MetaBufferType,
        size: int,
        usage: BufferUsage,
        copies: tuple[Buffer, ...] | None,
        *,
        make: Make = BufferType.alloc,
    ) -> None:
        super().__init__(buffer_type, size, usage)
        self._make = make
        self._meta = buffer_type.device
        self._copies = copies
        self._regions: list[Region] = []
        self._owned: list[Buffer] = []
        self._gap_value = 0
        """The value of mirrored bytes while they have no memory."""

    @property
    def held(self) -> Mapping[BufferType, int]:
        found = Counter[BufferType]()
        for buffer in (*(self._copies or ()), *self._owned):
            found[buffer.type] += buffer.size
        return found

    # --- where things lie --------------------------------------------------------------------

    @property
    def copies(self) -> tuple[Buffer, ...]:
        """The buffers of the mirrored bytes, one for each device; allocated on first access."""
        if self._copies is None:
            self._copies = alloc_all(self.type.kinds, self.size, self.usage, self._make)
            for copy in self._copies:
                copy.fill(self._gap_value)
        return self._copies

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions of tensors that are cut, in the order of their offsets."""
        return tuple(self._regions)

    def region_of(self, tensor: Tensor, offset: int) -> Region | None:
        """Return the region of `tensor`, or None if its bytes are mirrored.

        A region that overlaps the bytes but holds another tensor is mirrored first.
        """
        touched = self._touched(offset, offset + tensor.nbytes)
        if len(touched) == 1 and touched[0].holds(tensor, offset):
            return touched[0]
        for region in touched:
            self._dissolve(region)
        return None

    def init_tensor(self, tensor: Tensor, offset: int) -> None:
        if not tensor.is_leaf or not tensor.size or self.usage is BufferUsage.COMPUTE:
            return
        state = self._meta.partition_of(tensor)
        if state == WHOLE and self._copies is not None:
            return
        self.region_of(tensor, offset)
        self._regions = [r for r in self._regions if not r.holds(tensor, offset)]
        slices = []
        for d, kind in enumerate(self.type.kinds):
            part = like(tensor, local_ne(tensor, state, d))
            size = align(max(kind.alloc_size(part), 1), kind.alignment)
            buffer = self._make(kind, size, self.usage)
            self._owned.append(buffer)
            slices.append(_placed(part, buffer))
        region = Region(offset, offset + tensor.nbytes, tensor, state, tuple(slices))
        insort(self._regions, region, key=attrgetter("offset"))

    def reset(self) -> None:
        self._regions.clear()
        self._free_slices()

    def _dissolve(self, region: Region) -> None:
        """Gather a region and mirror its bytes on every device."""
        data = region.read()
        self._regions.remove(region)
        for copy in self.copies:
            copy.write(region.offset, data)
        self._meta.generation += 1

    # --- bytes ---------------------------------------------------------------------------------

    def _parts(self, offset: int, size: int) -> list[tuple[int, int, Region | None]]:
        """Cut a byte range at the ends of regions: (start, end, region; None if mirrored)."""
        found: list[tuple[int, int, Region | None]] = []
        at, end = offset, offset + size
        for region in self._touched(offset, end):
            if region.offset > at:
                found.append((at, region.offset, None))
            found.append((max(at, region.offset), min(end, region.end), region))
            at = min(end, region.end)
        return [*found, (at, end, None)] if at < end else found

    def _touched(self, offset: int, end: int) -> list[Region]:
        """The regions that overlap a byte range, in order; no two regions overlap each other."""
        first = bisect_right(self._regions, offset, key=attrgetter("end"))
        last = bisect_left(self._regions, end, key=attrgetter("offset"))
        return self._regions[first:last]

    def is_plain(self, offset: int, size: int) -> bool:
        """True if the whole byte range is mirrored."""
        return all(region is None for _, _, region in self._parts(offset, size))

    def _write(self, offset: int, data: memoryview) -> None:
        for start, end, region in self._parts(offset, data.nbytes):
            piece = data[start - offset : end - offset]
            if region is None:
                for copy in self.copies:
                    copy.write(start, piece)
                continue
            whole = end - start == region.tensor.nbytes
            stored = np.empty(region.tensor.nbytes, np.uint8) if whole else region.read()
            stored[start - region.offset : end - region.offset] = np.frombuffer(piece, np.uint8)
            region.write(stored)

    def _read(self, offset: int, out: memoryview) -> None:
        target = np.frombuffer(out, np.uint8)
        for start, end, region in self._parts(offset, out.nbytes):
            here = target[start - offset : end - offset]
            if region is None and self._copies is None:
                here[:] = self._gap_value
            elif region is None:
                self.copies[0].read_into(start, here)
            else:
                here[:] = region.read()[start - region.offset : end - region.offset]

    def _fill(self, offset: int, size: int, value: int) -> None:
        for start, end, region in self._parts(offset, size):
            if region is not None and end - start == region.tensor.nbytes:
                for part in region.slices:
                    place = part.place
                    assert place is not None
                    place.buffer.fill(value, place.offset, part.nbytes)
            elif region is not None:
                self._write(start, memoryview(bytes([value]) * (end - start)))
            elif self._copies is not None or size < self.size:
                for copy in self.copies:
                    copy.fill(value, start, end - start)
        if size == self.size:
            self._gap_value = value

    def _copy_from(self, source: Buffer, start: int, offset: int, size: int) -> bool:
        if not isinstance(source, MetaBuffer) or source._meta is not self._meta:
            return False
        if not (source.is_plain(start, size) and self.is_plain(offset, size)):
            return False
        pairs = list(zip(source.copies, self.copies, strict=True))
        return all(mine._copy_from(theirs, start, offset, size) for theirs, mine in pairs)

    # --- life ----------------------------------------------------------------------------------

    def _usage_changed(self) -> None:
        for buffer in (*(self._copies or ()), *self._owned):
            buffer.usage = self.usage

    def _free_slices(self) -> None:
        for buffer in self._owned:
            buffer.close()
        self._owned.clear()

    def _close(self) -> None:
        self._free_slices()
        for buffer in self._copies or ():
            buffer.close()
        self._regions = []
        self._copies = None


def _placed(part: Tensor, buffer: Buffer) -> Tensor:
    placed = Tensor(part.dtype, part.ne, part.nb, part.rank, name=part.name, place=Place(buffer, 0))
    buffer.init_tensor(placed, 0)
    return placed
