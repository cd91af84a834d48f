"""Memory: a `BufferType` makes `Buffer`s; a `MultiBuffer` is several buffers in one object."""

import enum
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from tensorplug.device.lifetime import Resource
from tensorplug.errors import (
    BufferTooLarge,
    DTypeError,
    NotAllocated,
    OptionError,
    OutOfMemory,
    ShapeError,
    Unsupported,
    blaming,
    map_driver_errors,
)
from tensorplug.graph.tensor import Array, Tensor, array_view
from tensorplug.text import human

if TYPE_CHECKING:
    from tensorplug.device.device import Device


class BufferUsage(enum.Enum):
    """What a buffer is used for. Schedulers run ops on the device that has their weights.

    >>> with tp.open("cpu") as cpu:
    ...     cpu.place("w", np.ones(4, np.float32), usage=tp.WEIGHTS).place.buffer.usage
    <BufferUsage.WEIGHTS: 'weights'>
    """

    ANY = "any"
    WEIGHTS = "weights"
    """Read by many runs. The buffer may be written between runs, and the next run reads new data.

    A backend that caches data computed from weights must drop the cache when `_write`, `_fill` or
    `_copy_from` of the buffer is called, and must not cache data of imported memory.
    """
    COMPUTE = "compute"


class Layout(enum.Enum):
    """The layout of tensors in the memory of a buffer type."""

    STANDARD = "standard"
    """Every element lies where the strides of the tensor say."""
    EXPANDED = "expanded"
    """Decoded to f32, whatever the type of the tensor."""
    PACKED = "packed"
    """In an order of the device's own; the values are not changed."""


def checked_usage(usage: object, where: str) -> BufferUsage:
    """Return `usage` if it is a BufferUsage. Raises OptionError."""
    if isinstance(usage, BufferUsage):
        return usage
    known = ", ".join(f"tensorplug.{each.name}" for each in BufferUsage)
    raise OptionError(f"{where}: usage={usage!r} is not a BufferUsage; give one of {known}")


@dataclass(frozen=True, slots=True)
class FileRange:
    """Stored bytes of a tensor in a file, for a device whose machine may have the same file.

    Two files are taken for the same if they have `file_size` bytes, `head` is the SHA-256 of the
    first `head_size` bytes, which hold the table of tensors, and `ends` that of the first and the
    last `END` bytes of the range.
    """

    END: ClassVar[int] = 4096

    path: str
    offset: int
    size: int
    file_size: int
    head_size: int
    head: str
    ends: str


class BufferType(ABC):
    """A kind of memory of one device. Compared by identity; thread-safe."""

    name: str
    alignment: int = 64
    """Tensors start at multiples of this number of bytes, a power of two."""
    max_size: int = sys.maxsize
    """Bytes of the largest single buffer."""
    is_host: bool = False
    """True if the host can read the memory and tensors have their standard layout in it."""
    layout: Layout = Layout.STANDARD
    """The layout of tensors. Buffers with a non-standard layout override `write_tensor` and
    `read_tensor`."""
    fresh_is_zero: bool = False
    """True if all bytes of new memory are 0."""
    only_shared: bool = False
    """True if plans have memory of their own for nodes that only their own part reads."""

    def __init__(self, device: "Device") -> None:
        self.device = device
        self.slow_sources: set[str] = set()
        """Names of buffer types from which copies to this one were found to go through the host."""

    @property
    def parts(self) -> Sequence["BufferType"]:
        """The kinds of memory that a buffer consists of; several on a device made of several."""
        return (self,)

    def unallocated(self, size: int, usage: BufferUsage = BufferUsage.ANY) -> "Buffer":
        """A buffer that only stands for memory, see `UnallocatedBuffer`."""
        return UnallocatedBuffer(self, size, usage)

    @final
    def alloc(
        self,
        size: int,
        usage: BufferUsage = BufferUsage.ANY,
        *,
        tensors: Sequence[Tensor] = (),
    ) -> "Buffer":
        """Return a buffer of at least `size` bytes.

        `tensors` are all tensors that will be placed in the buffer; empty if they are not known.
        Raises OutOfMemory, BufferTooLarge, OptionError.
        """
        checked_usage(usage, self.name)
        if size < 0:
            raise ShapeError(f"{self.name}: a buffer of {size} bytes; sizes are not negative")
        if size > self.max_size:
            raise BufferTooLarge(self.name, size, self.max_size)
        self.device.check_open()
        doing = f"{self.name}: {human(size)}"
        with blaming(self.device), map_driver_errors({MemoryError: OutOfMemory}, doing):
            return self._alloc_for(tensors, max(size, 1), usage)

    @final
    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes that `tensor` takes in this memory, at least `tensor.nbytes`. Raises ShapeError."""
        size = self._alloc_size(tensor)
        if size < tensor.nbytes:
            raise ShapeError(
                f"{self.name}: says that {tensor} takes {size} bytes, and it has {tensor.nbytes}; "
                "this is an error of the backend"
            )
        return size

    def supports(self, tensor: Tensor) -> bool:
        """True if `tensor` can be placed in this memory."""
        return True

    @property
    def standard_layout(self) -> bool:
        """True if every element lies where the strides of its tensor say."""
        return self.layout is Layout.STANDARD

    def prefers(self, weights: Tensor) -> bool:
        """True if loaders should place `weights` here, because ops read them fastest here."""
        return False

    @abstractmethod
    def _alloc(self, size: int, usage: BufferUsage) -> "Buffer":
        """Called with 0 < size <= max_size. Raise MemoryError or your driver's error when full."""

    def _alloc_for(self, tensors: Sequence[Tensor], size: int, usage: BufferUsage) -> "Buffer":
        """As `_alloc`; `tensors` are all tensors of the buffer, empty if they are not known."""
        return self._alloc(size, usage)

    def _alloc_size(self, tensor: Tensor) -> int:
        """Bytes for `tensor`: more than `tensor.nbytes` if a layout or a kernel needs more."""
        return tensor.nbytes

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Buffer(Resource, ABC):
    """A range of memory of one buffer type. Offsets and sizes are bytes.

    >>> with tp.open("cpu") as cpu, cpu.buffer_type.alloc(16) as buffer:
    ...     buffer.write(0, np.arange(4, dtype=np.float32))
    ...     buffer.read(8, 4).view(np.float32)
    array([2.], dtype=float32)
    """

    def __init__(
        self, buffer_type: BufferType, size: int, usage: BufferUsage = BufferUsage.ANY
    ) -> None:
        super().__init__(buffer_type.device)
        self.type = buffer_type
        self.size = size
        self._usage = usage

    @property
    def held(self) -> Mapping[BufferType, int]:
        """Bytes of each kind of memory."""
        return {self.type: self.size}

    @property
    def usage(self) -> BufferUsage:
        """What the buffer is for."""
        return self._usage

    @usage.setter
    def usage(self, usage: BufferUsage) -> None:
        self._usage = checked_usage(usage, repr(self))
        self._usage_changed()

    # --- bytes -----------------------------------------------------------------------------

    @final
    def write(self, offset: int, data: "memoryview | bytes | Array") -> None:
        """Copy host bytes to `offset`, before returning. Raises ShapeError if out of bounds."""
        view = as_bytes(data)
        self._check(offset, view.nbytes, "write")
        if view.nbytes:
            with blaming(self.type.device):
                self._write(offset, view)

    @final
    def read(self, offset: int, size: int) -> Array:
        """Return a copy of `size` bytes from `offset` as uint8."""
        self._check(offset, size, "read")
        out = np.empty(size, np.uint8)
        self.read_into(offset, out)
        return out

    @final
    def read_into(self, offset: int, out: "memoryview | bytearray | Array") -> None:
        """Fill `out` with bytes from `offset` on, before returning."""
        view = as_bytes(out)
        self._check(offset, view.nbytes, "read")
        if not view.nbytes:
            return
        if view.readonly:
            raise DTypeError(f"{self!r}: cannot read into read-only memory")
        with blaming(self.type.device):
            self._read(offset, view)

    @final
    def fill(self, value: int, offset: int = 0, size: int | None = None) -> None:
        """Set `size` bytes from `offset` on (by default all bytes) to `value`, 0 to 255."""
        size = self.size - offset if size is None else size
        self._check(offset, size, "fill")
        check_byte(value, repr(self))
        if size:
            with blaming(self.type.device):
                self._fill(offset, size, value)

    @final
    def write_2d(
        self, offset: int, data: "memoryview | bytes | Array", *, row: int, stride: int
    ) -> None:
        """Copy rows of `row` bytes, contiguous in `data`, to `offset` on, `stride` bytes apart."""
        view = as_bytes(data)
        self._check(offset, self._span(view.nbytes, row, stride), "2D write")
        if view.nbytes:
            with blaming(self.type.device):
                self._write_2d(offset, view, row, stride)

    @final
    def read_2d(self, offset: int, rows: int, *, row: int, stride: int) -> Array:
        """Return a contiguous copy of `rows` rows of `row` bytes that lie `stride` bytes apart."""
        self._check(offset, self._span(rows * row, row, stride), "2D read")
        out = np.empty((rows, row), np.uint8)
        if out.size:
            with blaming(self.type.device):
                self._read_2d(offset, as_bytes(out), row, stride)
        return out

    def host(self) -> Array:
        """The memory as a uint8 array, without a copy. Raises NotAllocated if the host cannot read
        it."""
        raise NotAllocated(
            f"{self!r}: the host cannot see {self.type.name} memory; read() copies it"
        )

    def shared(self, tensor: Tensor, offset: int) -> Any:
        """An array with DLPack of `tensor`, which lies at `offset`, without a copy.

        It is a NumPy array if the host can read the memory. For other memory a backend can override
        this method; otherwise it raises NotAllocated.
        """
        return array_view(tensor, self.host(), offset)

    # --- tensors ---------------------------------------------------------------------------

    def init_tensor(self, tensor: Tensor, offset: int) -> None:
        """Prepare memory for `tensor` at `offset`. Called once per placed tensor; may raise
        OutOfMemory."""

    def write_tensor(self, tensor: Tensor, offset: int, data: memoryview) -> None:
        """Write all of contiguous `tensor` at `offset`; `data` is in the standard layout."""
        self.write(offset, data)

    def read_tensor(self, tensor: Tensor, offset: int, out: memoryview) -> None:
        """Read all bytes of `tensor` at `offset` in the standard layout, gaps included."""
        self.read_into(offset, out)

    def read_file(self, tensor: Tensor, offset: int, source: FileRange) -> bool:
        """Read all of contiguous `tensor` from a file of the device's own machine; True if done.

        False, the default, means that the caller writes the tensor. A device of another machine
        overrides this, so that weights need not pass the network. Raises FormatError for a file
        that is not the same.
        """
        return False

    def reset(self) -> None:
        """Drop everything that `init_tensor` stored.

        Called before the tensors of a compute buffer get other places: when the buffer grew, or
        when all its schedules were closed. No queued work uses the buffer any more.
        """

    # --- for implementers ------------------------------------------------------------------

    @abstractmethod
    def _write(self, offset: int, data: memoryview) -> None:
        """Copy `data` (bytes, contiguous, in bounds) to `offset`, before returning."""

    @abstractmethod
    def _read(self, offset: int, out: memoryview) -> None:
        """Copy bytes from `offset` to `out` (bytes, contiguous, in bounds), before returning."""

    @abstractmethod
    def _fill(self, offset: int, size: int, value: int) -> None:
        """Set `size` bytes from `offset` on to `value`, before returning."""

    def _write_2d(self, offset: int, data: memoryview, row: int, stride: int) -> None:
        for i in range(data.nbytes // row):
            self._write(offset + i * stride, data[i * row : (i + 1) * row])

    def _read_2d(self, offset: int, out: memoryview, row: int, stride: int) -> None:
        for i in range(out.nbytes // row):
            self._read(offset + i * stride, out[i * row : (i + 1) * row])

    def _copy_from(self, source: "Buffer", start: int, offset: int, size: int) -> bool:
        """Copy from another buffer without the host and return True, or return False."""
        return False

    def _usage_changed(self) -> None:
        """Called after `usage` was set."""

    def _finish(self) -> None:
        self.type.device.drain()

    def _check(self, offset: int, size: int, doing: str) -> None:
        self.check_open()
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ShapeError(
                f"{self!r}: {doing} of bytes {offset} to {offset + size} is out of bounds; "
                f"the buffer has {self.size} bytes"
            )

    @staticmethod
    def _span(size: int, row: int, stride: int) -> int:
        if row < 1 or stride < row or size % row:
            raise ShapeError(
                f"2D access: {size} bytes in rows of {row}, {stride} apart, do not fit"
            )
        return (size // row - 1) * stride + row if size else 0

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.usage.name} {human(self.size)}"
        return f"<{type(self).__name__} {self.type.name}, {state}>"


class UnallocatedBuffer(Buffer):
    """A buffer without memory: graphs whose tensors lie in it can be planned, and never run."""

    def _write(self, offset: int, data: memoryview) -> None:
        raise NotAllocated(f"{self!r}: only stands for memory; nothing can be written to it")

    def _read(self, offset: int, out: memoryview) -> None:
        raise NotAllocated(f"{self!r}: only stands for memory; nothing can be read from it")

    def _fill(self, offset: int, size: int, value: int) -> None:
        """There is nothing to fill."""

    def _finish(self) -> None:
        """No work uses it."""


class ArrayBuffer(Buffer):
    """A buffer whose bytes are in a NumPy array of uint8, accessible only by transfers."""

    def __init__(
        self, buffer_type: BufferType, memory: Array, usage: BufferUsage = BufferUsage.ANY
    ) -> None:
        super().__init__(buffer_type, memory.size, usage)
        self._memory = memory

    def _write(self, offset: int, data: memoryview) -> None:
        if not self._memory.flags.writeable:
            raise Unsupported(f"{self!r}: is read-only memory")
        self._memory[offset : offset + data.nbytes] = data

    def _read(self, offset: int, out: memoryview) -> None:
        np.frombuffer(out, np.uint8)[:] = self._memory[offset : offset + out.nbytes]

    def _fill(self, offset: int, size: int, value: int) -> None:
        if not self._memory.flags.writeable:
            raise Unsupported(f"{self!r}: is read-only memory")
        self._memory[offset : offset + size] = value

    def _close(self) -> None:
        # Arrays that were handed out keep the memory alive; the buffer drops its reference.
        self._memory = np.empty(0, np.uint8)


class HostBuffer(ArrayBuffer):
    """A buffer in host memory, which `host()` returns as a NumPy array of uint8."""

    def host(self) -> Array:
        self.check_open()
        return self._memory

    def _copy_from(self, source: Buffer, start: int, offset: int, size: int) -> bool:
        if not source.type.is_host:
            return False
        self._write(offset, source.host()[start : start + size].data)
        return True


class MultiBuffer(Resource):
    """Several buffers of one type that are owned, filled and closed together.

    The place of a tensor names one of the parts, never the MultiBuffer.
    """

    def __init__(self, parts: Sequence[Buffer]) -> None:
        if not parts:
            raise ShapeError("MultiBuffer: no parts given; at least one is needed")
        if any(part.type is not parts[0].type for part in parts):
            raise ShapeError(f"MultiBuffer: parts of several types: {[p.type for p in parts]}")
        super().__init__(parts[0].type.device)
        self.type = parts[0].type
        self.parts = tuple(parts)

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)

    @property
    def held(self) -> Mapping[BufferType, int]:
        """Bytes of each kind of memory."""
        found = Counter[BufferType]()
        for part in self.parts:
            found.update(part.held)
        return found

    @property
    def usage(self) -> BufferUsage:
        """What the parts are used for."""
        return self.parts[0].usage

    @usage.setter
    def usage(self, usage: BufferUsage) -> None:
        for part in self.parts:
            part.usage = usage

    def fill(self, value: int) -> None:
        """Set every byte of every part."""
        for part in self.parts:
            part.fill(value)

    def reset(self) -> None:
        """Call `reset()` of every part."""
        for part in self.parts:
            part.reset()

    def _close(self) -> None:
        for part in self.parts:
            part.close()

    def _abandon(self) -> None:
        """Do not close the parts: tensors may still use them and keep them alive."""

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.usage.name} {human(self.size)}"
        return f"<MultiBuffer {self.type.name}, {len(self.parts)} parts, {state}>"


def check_byte(value: int, where: str) -> None:
    """Raise ShapeError if `value` is not from 0 to 255."""
    if not 0 <= value <= 255:
        raise ShapeError(f"{where}: fill with {value}; a byte is 0 to 255")


def as_bytes(data: "memoryview | bytes | bytearray | Array") -> memoryview:
    """View contiguous data as bytes, without a copy."""
    # memoryview() does not accept arrays of some types (big-endian, extension types).
    flat: Any = data
    if isinstance(data, np.ndarray) and data.flags.c_contiguous:
        flat = data.reshape(-1).view(np.uint8)
    view = memoryview(flat)
    if not view.c_contiguous:
        raise DTypeError("transfer: host data must be C-contiguous; use numpy.ascontiguousarray()")
    if view.nbytes == 0:
        return memoryview(bytearray())
    return view.cast("B")
