"""Buffers: shared with the host, private to the GPU, of the host's own pages, imported."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tensorplug.device import (
    Array,
    Buffer,
    BufferType,
    BufferUsage,
    HostBuffer,
    Unsupported,
    as_bytes,
)
from tensorplug_metal.barriers import bytes_of
from tensorplug_metal.errors import given
from tensorplug_metal.facts import storage
from tensorplug_metal.pages import View, contents, wrapped
from tensorplug_simt.device import SimtBufferType

if TYPE_CHECKING:
    from tensorplug_metal.device import MetalDevice

Spot = tuple[Any, int]
"""A buffer of Metal's, and a byte of it."""
WORD = 4
"""Bytes of which the GPU's copies and fills take whole multiples, at multiples of them."""


class MetalBufferType(SimtBufferType):
    """Memory of Metal's: the host sees it unless it is `private`."""

    device: "MetalDevice"
    # That of tensors in GGUF files, so that mapped ones are used as they lie.
    alignment = 32

    def __init__(self, device: "MetalDevice", *, private: bool) -> None:
        super().__init__(device)
        self.private = private
        self.is_host = not private
        self.name = f"{device.name}_private" if private else device.name
        self.max_size = device.gpu.largest_buffer

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        self.device.need(size)
        # Whole words: copies and fills of the GPU have no others.
        room = -(-size // WORD) * WORD
        handle = given(
            self.device.handle.newBufferWithLength_options_(room, storage(private=self.private)),
            f"{self.name}: {size} bytes",
        )
        views = [View(0, room, handle)]
        if self.private:
            return PrivateBuffer(self, size, usage, views)
        return SharedBuffer(self, contents(handle, size), usage, views, taken=size)


class OnGpu:
    """What buffers that kernels reach have: an owner, and one or more views of them."""

    owner: "MetalDevice"
    views: Sequence[View]
    taken = 0
    """Bytes that count as the device's."""

    def view(self, first: int, end: int) -> View | None:
        """A view that has all bytes from `first` to `end`; None where none has."""
        return next((v for v in self.views if v.start <= first and end <= v.end), None)

    def spot(self, first: int, end: int) -> Spot:
        """A buffer of Metal's with all those bytes, and where in it the first is."""
        view = self.view(first, end)
        assert view is not None, "asked before"
        return view.handle, view.offset(first)

    def _reside(self, owner: "MetalDevice", views: Sequence[View], taken: int) -> None:
        self.owner, self.views, self.taken = owner, views, taken
        owner.residency.add([view.handle for view in views])
        owner.count(taken)

    def _leave_gpu(self) -> None:
        self.owner.count(-self.taken)
        self.owner.residency.remove([view.handle for view in self.views])
        self.views = ()


class SharedBuffer(HostBuffer, OnGpu):
    """Memory that the host and the GPU see: the host moves bytes by itself."""

    def __init__(
        self,
        buffer_type: BufferType,
        memory: Array,
        usage: BufferUsage,
        views: Sequence[View],
        *,
        taken: int = 0,
    ) -> None:
        super().__init__(buffer_type, memory, usage)
        device: Any = buffer_type.device
        self._reside(device, views, taken)

    def _write_2d(self, offset: int, data: memoryview, row: int, stride: int) -> None:
        if not self._memory.flags.writeable:
            raise Unsupported(f"{self!r}: is read-only memory")
        rows = np.frombuffer(data, np.uint8).reshape(-1, row)
        self._rows(offset, len(rows), row, stride)[...] = rows

    def _read_2d(self, offset: int, out: memoryview, row: int, stride: int) -> None:
        rows = np.frombuffer(out, np.uint8).reshape(-1, row)
        rows[...] = self._rows(offset, len(rows), row, stride)

    def _rows(self, offset: int, count: int, row: int, stride: int) -> Array:
        return np.lib.stride_tricks.as_strided(self._memory[offset:], (count, row), (stride, 1))

    def _close(self) -> None:
        self._leave_gpu()
        super()._close()


class PrivateBuffer(Buffer, OnGpu):
    """Memory that only the GPU reaches: the GPU copies bytes to it from shared memory, and back."""

    type: MetalBufferType

    def __init__(
        self, buffer_type: MetalBufferType, size: int, usage: BufferUsage, views: Sequence[View]
    ) -> None:
        super().__init__(buffer_type, size, usage)
        self._reside(buffer_type.device, views, size)

    def _write(self, offset: int, data: memoryview) -> None:
        start, end = _words(offset, data.nbytes)
        staged = staging(self.owner, end - start)
        if (start, end) != (offset, offset + data.nbytes):
            # The GPU copies whole words: bytes of theirs that are not written keep their values.
            self._move(start, staged)
        staged.memory[offset - start :][: data.nbytes] = data
        with self.owner.moving(f"{self!r}: write") as encoder:
            queue_copy(encoder, staged.spot, self.spot(start, end), end - start)

    def _read(self, offset: int, out: memoryview) -> None:
        start, end = _words(offset, out.nbytes)
        staged = staging(self.owner, end - start)
        self._move(start, staged)
        np.frombuffer(out, np.uint8)[:] = staged.memory[offset - start :][: out.nbytes]

    def _fill(self, offset: int, size: int, value: int) -> None:
        start, end = _words(offset, size)
        if (start, end) != (offset, offset + size):
            self._write(offset, memoryview(bytes([value]) * size))
            return
        handle, at = self.spot(offset, offset + size)
        with self.owner.moving(f"{self!r}: fill") as encoder:
            encoder.fillBuffer_range_value_(handle, (at, size), value)

    def _copy_from(self, source: Buffer, start: int, offset: int, size: int) -> bool:
        if not can_copy(source, start, self, offset, size):
            return False
        with self.owner.moving(f"{self!r}: copy") as encoder:
            queue_copy(encoder, spot(source, start, size), spot(self, offset, size), size)
        return True

    def _move(self, start: int, staged: "Staged") -> None:
        """Bring bytes to shared memory."""
        size = staged.memory.size
        with self.owner.moving(f"{self!r}: read") as encoder:
            queue_copy(encoder, self.spot(start, start + size), staged.spot, size)

    def _close(self) -> None:
        self._leave_gpu()


class Staged(NamedTuple):
    """Shared memory for bytes on their way. A command buffer that uses it keeps it alive."""

    handle: Any
    memory: Array

    @property
    def spot(self) -> Spot:
        """Where it begins."""
        return self.handle, 0


def staging(device: "MetalDevice", size: int) -> Staged:
    """Memory for `size` bytes on their way. Raises OutOfMemory."""
    where = f"{device.name}: {size} bytes to be moved"
    handle = given(device.handle.newBufferWithLength_options_(size, storage(private=False)), where)
    return Staged(handle, contents(handle, size))


def _words(offset: int, size: int) -> tuple[int, int]:
    """The whole words that bytes lie in."""
    return offset // WORD * WORD, -(-(offset + size) // WORD) * WORD


def spot(buffer: Buffer, offset: int, size: int) -> Spot:
    """A buffer of Metal's that has bytes of ours, and where in it they lie."""
    assert isinstance(buffer, OnGpu)
    return buffer.spot(offset, offset + size)


def queue_copy(encoder: Any, source: Spot, target: Spot, size: int) -> None:
    """Let the GPU copy whole words."""
    encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(*source, *target, size)


def can_move(buffer: Buffer, offset: int, size: int) -> bool:
    """Whether the GPU can move bytes: whole words of one of its buffers."""
    if not isinstance(buffer, OnGpu) or size % WORD:
        return False
    view = buffer.view(offset, offset + size)
    return view is not None and view.offset(offset) % WORD == 0


def can_copy(source: Buffer, start: int, target: Buffer, offset: int, size: int) -> bool:
    """Whether the GPU can copy bytes: within itself, and nothing over itself."""
    if not can_move(source, start, size) or not can_move(target, offset, size):
        return False
    first = bytes_of(source, start, start + size)
    return not first.overlaps(bytes_of(target, offset, offset + size))


def imported(
    buffer_type: MetalBufferType, memory: Array, *, largest_tensor: int = 0
) -> SharedBuffer:
    """A buffer of host memory, which stays alive with it. Raises Unsupported, ShapeError."""
    device = buffer_type.device
    flat = np.frombuffer(as_bytes(memory), np.uint8)
    device.need_aligned(flat.ctypes.data)
    views = wrapped(device.handle, flat, device.gpu.largest_buffer, largest_tensor)
    return SharedBuffer(buffer_type, flat, BufferUsage.ANY, views)
