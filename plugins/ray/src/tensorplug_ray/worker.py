"""`Worker`: the actor of one device, which does what the objects of the driver ask.

All methods run one after the other, in the order of the driver's calls. What the driver sends is
data: numbers of buffers, streams and plans, bytes, and parts in core's wire form. Everything is
checked before it is used.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgpack
import numpy as np

from tensorplug.device import (
    Array,
    Backend,
    Buffer,
    BufferUsage,
    DeviceType,
    FileRange,
    Part,
    Place,
    Plan,
    as_bytes,
    leaf,
    order_after,
)
from tensorplug.device.moving import copy_bytes, queue_copy, queue_read, queue_write
from tensorplug.device.wire import unpack_part, unpack_places
from tensorplug.errors import DeviceError, FormatError, OptionError, OutOfMemory, TensorplugError
from tensorplug.registry.registry import Registry
from tensorplug_ray.files import Files
from tensorplug_ray.identity import Identity, identity
from tensorplug_ray.patterns import KNOWN
from tensorplug_ray.questions import Answers
from tensorplug_ray.trust import authentication

Command = tuple[Any, ...]
T = TypeVar("T")


class Failed(NamedTuple):
    """The error that a call ended with, as data."""

    kind: str
    text: str
    node: str


SMALL = 1 << 16
"""Bytes up to which arrays are copied to travel as `bytes`: Ray takes 0.1 ms longer for others."""
Bytes = bytes | Array


def packed(number: int, commands: Sequence[Command], sends: int) -> bytes:
    """The commands of a stream as data, of which the last argument of `do` is made."""
    return bytes(msgpack.packb((number, commands, sends)))


def unpacked(order: bytes) -> tuple[int, Sequence[Command], int]:
    """The arguments of `packed`. Raises FormatError."""
    try:
        number, commands, sends = msgpack.unpackb(order, use_list=False)
        if not all(isinstance(command, tuple) and command for command in commands):
            raise ValueError("a command is not a name with arguments")
        if sends not in range(len(commands) + 1):
            raise ValueError(f"{sends!r} answers for {len(commands)} commands")
    except (ValueError, TypeError) as error:
        raise FormatError(f"commands of {len(order)} bytes: are damaged: {error}") from error
    return number, commands, sends


def failed(error: Exception) -> Failed:
    """The data of an error; one that is not of tensorplug becomes a DeviceError."""
    if isinstance(error, TensorplugError):
        return Failed(type(error).__name__, str(error), error.node)
    kind = OutOfMemory if isinstance(error, MemoryError) else DeviceError
    return Failed(kind.__name__, f"{type(error).__name__}: {error}", "")


def answering(method: Callable[..., T]) -> Callable[..., T | Failed]:
    """A method whose errors are returned as data: Ray would add its own text and trace."""

    @wraps(method)
    def call(self: Any, *args: Any) -> T | Failed:
        try:
            return method(self, *args)
        except Exception as error:  # noqa: BLE001 - all errors are the driver's to know
            return failed(error)

    return call


@dataclass
class _Stream:
    """A stream with the error of its queued work, and host memory that it may still read."""

    backend: Backend
    error: Failed | None = None
    held: list[Any] = field(default_factory=list)

    def settle(self) -> None:
        """Wait for queued work, and keep its error."""
        try:
            self.backend.synchronize()
        except Exception as error:  # noqa: BLE001 - the next sync command returns it
            self.error = self.error or failed(error)
        self.held.clear()


@dataclass
class _Prepared:
    """A plan, and the buffers that its work reads and writes."""

    plan: Plan
    memory: Sequence[Buffer]

    def run(self) -> None:
        """Run the plan. Raises FormatError if its memory was freed: kernels would not notice."""
        for buffer in self.memory:
            if buffer.closed:
                raise FormatError(f"{self.plan!r}: {buffer!r}, which it uses, was freed")
        self.plan.run()


def _memory_of(part: Part) -> Sequence[Buffer]:
    """The buffers of a part's tensors, each one once."""
    tensors, bindings = (*part.leafs, *part.nodes), part.bindings
    return list(dict.fromkeys(bindings.where(t).buffer for t in tensors if bindings.has(t)))


class Worker:
    """Opens one device of its node and holds its memory, streams and plans by number."""

    def __init__(self) -> None:
        # Ray's settings are inherited: the device of an actor is never another actor.
        os.environ["TENSORPLUG_DISABLE"] = "ray"
        self._spec = ""
        self._registry = Registry()
        self._buffers: dict[int, Buffer] = {}
        self._streams: dict[int, _Stream] = {}
        self._plans: dict[int, _Prepared] = {}
        self._files = Files()

    def identify(self) -> tuple[Identity, str]:
        """The versions here with the mode of authentication, and the name of the node."""
        return {**identity(), "authentication": authentication()}, os.uname().nodename

    @answering
    def open(self, spec: str) -> Mapping[str, Any]:
        """Open the device and return its facts."""
        self._spec = spec
        stream = self._registry.open(spec)
        device = stream.device
        if device.type is DeviceType.META:
            raise OptionError(f"{spec}: a device made of several cannot be used from elsewhere")
        self._device = device
        self._stream = stream
        self._types = (device.buffer_type, *device.extra_buffer_types)
        self._answers = Answers(stream, self._types)
        types = [
            {
                "name": kind.name,
                "alignment": kind.alignment,
                "max_size": kind.max_size,
                "layout": kind.layout.value,
                "fresh_is_zero": kind.fresh_is_zero,
                "only_shared": kind.only_shared,
            }
            for kind in self._types
        ]
        return {
            "name": device.name,
            "description": device.description,
            "type": device.type.value,
            "prefers_f16": stream.prefers_f16,
            "fusions": [p.name for p in getattr(device, "fusions", ()) if p.name in KNOWN],
            "types": types,
            "pid": os.getpid(),
        }

    @answering
    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the device."""
        found = self._device.memory()
        return found.free, found.total

    def counts(self) -> tuple[int, int, int]:
        """The number of open buffers, streams and plans."""
        return len(self._buffers), len(self._streams), len(self._plans)

    @answering
    def answer(self, what: str, data: bytes, memory: int) -> Any:
        """Answer a question about work or memory."""
        return self._answers.answer(what, data, memory)

    # --- memory ----------------------------------------------------------------------------

    @answering
    def alloc(self, number: int, memory: int, size: int, usage: str) -> int:
        """Allocate a buffer and return its size."""
        if number in self._buffers or not 0 <= memory < len(self._types):
            raise FormatError(f"{self._spec}: cannot make buffer {number} of memory {memory}")
        self._buffers[number] = self._types[memory].alloc(size, BufferUsage(usage))
        return self._buffers[number].size

    @answering
    def free(self, number: int) -> None:
        """Close a buffer."""
        buffer = self._buffers.pop(number, None)
        if buffer is not None:
            buffer.close()

    @answering
    def use_for(self, number: int, usage: str) -> None:
        """Change what a buffer is used for."""
        self._buffer(number).usage = BufferUsage(usage)

    @answering
    def write(self, number: int, offset: int, data: Array) -> None:
        """Write bytes."""
        self._buffer(number).write(offset, data)

    @answering
    def read(self, number: int, offset: int, size: int) -> Array:
        """Read bytes."""
        return self._buffer(number).read(offset, size)

    @answering
    def fill(self, number: int, offset: int, size: int, value: int) -> None:
        """Set bytes to one value."""
        self._buffer(number).fill(value, offset, size)

    @answering
    def write_2d(self, number: int, offset: int, data: Array, row: int, stride: int) -> None:
        """Write rows that lie apart."""
        self._buffer(number).write_2d(offset, data, row=row, stride=stride)

    @answering
    def read_2d(self, number: int, offset: int, rows: int, row: int, stride: int) -> Array:
        """Read rows that lie apart."""
        return self._buffer(number).read_2d(offset, rows, row=row, stride=stride)

    @answering
    def copy(self, source: int, start: int, target: int, offset: int, size: int) -> None:
        """Copy bytes from one buffer to another."""
        copy_bytes(self._place(source, start), self._place(target, offset), size)

    @answering
    def write_tensor(
        self, number: int, offset: int, name: str, shape: Sequence[int], kind: str, data: Array
    ) -> None:
        """Write a whole tensor in the layout of its memory."""
        buffer, tensor = self._buffer(number), leaf(name, tuple(shape), kind)
        self._check_whole(buffer, tensor, offset)
        buffer.write_tensor(tensor, offset, as_bytes(data))

    @answering
    def read_file(
        self,
        number: int,
        offset: int,
        name: str,
        shape: Sequence[int],
        kind: str,
        source: tuple[Any, ...],
    ) -> bool:
        """Read a whole tensor from a file here; False if there is no such file."""
        buffer, tensor, there = (
            self._buffer(number),
            leaf(name, tuple(shape), kind),
            FileRange(*source),
        )
        self._check_whole(buffer, tensor, offset)
        path = Path(there.path)
        if not path.is_file():
            return False
        data = self._files.read(path, there, tensor.nbytes)
        buffer.write_tensor(tensor, offset, as_bytes(data))
        return True

    @answering
    def read_tensor(
        self, number: int, offset: int, name: str, shape: Sequence[int], kind: str
    ) -> Array:
        """Read a whole tensor from the layout of its memory."""
        buffer, tensor = self._buffer(number), leaf(name, tuple(shape), kind)
        self._check_whole(buffer, tensor, offset)
        out = np.empty(tensor.nbytes, np.uint8)
        buffer.read_tensor(tensor, offset, as_bytes(out))
        return out

    def _check_whole(self, buffer: Buffer, tensor: Any, offset: int) -> None:
        size = buffer.type.alloc_size(tensor)
        if not 0 <= offset <= buffer.size - size:
            raise FormatError(
                f"{self._spec}: {tensor} needs {size} bytes at {offset} of {buffer!r}, which has "
                f"{buffer.size}"
            )

    # --- streams and plans -----------------------------------------------------------------

    @answering
    def open_stream(self, number: int) -> None:
        """Open a stream."""
        self._streams[number] = _Stream(self._registry.open(self._spec))

    @answering
    def close_stream(self, number: int) -> None:
        """Close a stream with its plans."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            kept = self._plans.items()
            self._plans = {n: p for n, p in kept if p.plan.backend is not stream.backend}
            stream.backend.close(force=True)

    @answering
    def plan(self, number: int, stream: int, data: bytes) -> None:
        """Prepare a part."""
        part = unpack_part(data, self._buffers, patterns=KNOWN.values())
        plan = self._open_stream(stream).backend.plan(part)
        self._plans[number] = _Prepared(plan, _memory_of(part))

    @answering
    def rebind(self, number: int, data: bytes) -> None:
        """Use a plan for another part of the same structure."""
        self._rebind(number, unpack_part(data, self._buffers, patterns=KNOWN.values()))

    @answering
    def move(self, number: int, data: bytes) -> None:
        """Use a plan for other places."""
        here = self._plan(number).plan.bound
        self._rebind(number, unpack_places(data, here, self._buffers))

    def _rebind(self, number: int, part: Part) -> None:
        prepared = self._plan(number)
        prepared.plan.rebind(part)
        prepared.memory = _memory_of(part)

    @answering
    def drop(self, number: int) -> None:
        """Close a plan."""
        prepared = self._plans.pop(number, None)
        if prepared is not None:
            prepared.plan.close()

    def do(self, order: bytes, *arrived: Bytes | None) -> Any:
        """Do the commands of a stream in order.

        Returns the answer, then what was sent in `sends` values, each one by itself.
        """
        try:
            number, commands, sends = unpacked(order)
        except FormatError as error:
            return failed(error)
        return self._do(number, commands, sends, *arrived)

    def _do(
        self, number: int, commands: Sequence[Command], sends: int, *arrived: Bytes | None
    ) -> Any:
        try:
            call = _Call(self, self._open_stream(number), arrived)
        except TensorplugError as error:
            return self._returned(failed(error), [], sends)
        call.do(commands)
        return self._returned(call.answer(), [_lean(array) for array in call.sent], sends)

    @staticmethod
    def _returned(answer: Any, sent: Sequence[Bytes | None], sends: int) -> Any:
        return (answer, *sent, *[None] * (sends - len(sent))) if sends else answer

    # --- by number -------------------------------------------------------------------------

    def _buffer(self, number: int) -> Buffer:
        return self._of(self._buffers, number, "buffer")

    def _open_stream(self, number: int) -> _Stream:
        return self._of(self._streams, number, "stream")

    def _plan(self, number: int) -> _Prepared:
        return self._of(self._plans, number, "plan")

    def _of(self, table: Mapping[int, T], number: int, what: str) -> T:
        found = table.get(number)
        if found is None:
            raise FormatError(f"{self._spec}: {what} {number!r} is not open here")
        return found

    def _place(self, number: int, offset: int) -> Place:
        return Place(self._buffer(number), offset)

    def _checked(self, number: int, offset: int, size: int, doing: str) -> Place:
        place = self._place(number, offset)
        place.buffer._check(offset, size, doing)
        return place


def _lean(array: Array | None) -> Bytes | None:
    """The bytes of an array, as what travels fastest."""
    return array if array is None or array.nbytes > SMALL else array.tobytes()


class _Call:
    """One call with commands of a stream."""

    def __init__(self, worker: Worker, stream: _Stream, arrived: Sequence[Bytes | None]) -> None:
        self._worker = worker
        self._stream = stream
        self._arrived = arrived
        self.reads: list[Array] = []
        self.sent: list[Array | None] = []
        self.error: Failed | None = None

    def do(self, commands: Sequence[Command]) -> None:
        """Do the commands; what follows one that failed is left out until the error is told."""
        stream, waits = self._stream, False
        for name, *arguments in commands:
            waits = waits or name in _WAITING
            if name == "sync":
                stream.settle()
                self.error, stream.error = self.error or stream.error, None
            elif stream.error is None:
                self._one(name, arguments)
        if waits:
            stream.settle()
        self.error = self.error or stream.error
        if self.error is not None:
            self.reads, self.sent = [], [None] * len(self.sent)

    def answer(self) -> Failed | bytes | Sequence[Array]:
        """The error, or the bytes that were read: together if they are few."""
        if self.error is not None:
            return self.error
        if sum(array.nbytes for array in self.reads) > SMALL:
            return self.reads
        return b"".join(array.tobytes() for array in self.reads)

    def _one(self, name: str, arguments: Sequence[Any]) -> None:
        try:
            command = _COMMANDS.get(name)
            if command is None:
                raise FormatError(f"command {name!r}: is not known here")
            command(self, *arguments)
        except Exception as error:  # noqa: BLE001 - the next sync command returns it
            self._stream.error = failed(error)

    def _run(self, plan: int) -> None:
        self._worker._plan(plan).run()

    def _write(self, buffer: int, offset: int, data: bytes) -> None:
        place = self._worker._checked(buffer, offset, len(data), "write")
        self._stream.held.append(data)
        queue_write(self._stream.backend, place, np.frombuffer(data, np.uint8))

    def _receive(self, buffer: int, offset: int, size: int, index: int) -> None:
        arrived = self._arrived[index]
        if arrived is None:
            return  # the sender failed, and its own stream says so
        data = np.frombuffer(arrived, np.uint8)
        if data.nbytes != size:
            raise FormatError(f"{data.nbytes} bytes arrived for buffer {buffer}, not {size}")
        place = self._worker._checked(buffer, offset, size, "write")
        self._stream.held.append(data)
        queue_write(self._stream.backend, place, data)

    def _read(self, buffer: int, offset: int, size: int) -> None:
        self.reads.append(self._taken(buffer, offset, size))

    def _send(self, buffer: int, offset: int, size: int) -> None:
        self.sent.append(self._taken(buffer, offset, size))

    def _taken(self, buffer: int, offset: int, size: int) -> Array:
        place = self._worker._checked(buffer, offset, size, "read")
        out = np.empty(size, np.uint8)
        queue_read(self._stream.backend, place, out)
        return out

    def _copy(
        self, other: int, source: int, start: int, target: int, offset: int, size: int
    ) -> None:
        begin = self._worker._checked(source, start, size, "copy")
        end = self._worker._checked(target, offset, size, "copy")
        sender = self._worker._open_stream(other)
        reader = queue_copy(sender.backend, self._stream.backend, begin, end, size)
        if reader is sender.backend:
            sender.settle()
        elif reader is not None:
            order_after(reader, sender.backend)  # whose later work may overwrite the source

    def _mark(self) -> None:
        """Do nothing: the call waits at its end, so what it returns is an event."""


_COMMANDS: Mapping[str, Callable[..., None]] = {
    "run": _Call._run,
    "write": _Call._write,
    "receive": _Call._receive,
    "read": _Call._read,
    "send": _Call._send,
    "copy": _Call._copy,
    "mark": _Call._mark,
}
_WAITING = frozenset({"read", "send", "mark"})
"""Commands after which the call waits for the stream before it returns."""
