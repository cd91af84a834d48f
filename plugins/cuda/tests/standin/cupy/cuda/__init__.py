"""Devices, streams, events and graphs."""

import ctypes
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from cupy._machine import CAPTURE_UNMATCHED, INVALID_HANDLE, CUDARuntimeError, machine
from cupy._streams import Capture, Queue
from cupy.cuda import compiler, driver, function, memory, runtime
from cupy.cuda.memory import Memory, MemoryPointer, UnownedMemory

__all__ = [
    "Memory",
    "MemoryPointer",
    "UnownedMemory",
    "compiler",
    "driver",
    "function",
    "memory",
    "runtime",
]


class Device:
    """A GPU; the one that calls mean inside `with`."""

    def __init__(self, device: int | None = None) -> None:
        self.id = machine.current if device is None else device
        machine.gpu(self.id)
        self._before: list[int] = []

    def __enter__(self) -> "Device":
        self._before.append(machine.current)
        machine.current = self.id
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        machine.current = self._before.pop()

    def synchronize(self) -> None:
        machine.synchronize_device(self.id)
        machine.check(self.id)


class Event:
    """An event that its finalizer destroys, also while others in the same garbage still use it."""

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        self.ptr = 0
        self.ptr = runtime.eventCreateWithFlags(
            runtime.eventDisableTiming if disable_timing else runtime.eventDefault
        )

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.ptr and not _finalizing():
            runtime.eventDestroy(self.ptr)

    @property
    def done(self) -> bool:
        return runtime.eventQuery(self.ptr) == 0

    def record(self, stream: "_BaseStream | None" = None) -> None:
        assert stream is not None, "the stand-in has no current stream"
        stream.record(self)

    def synchronize(self) -> None:
        runtime.eventSynchronize(self.ptr)


class _BaseStream:
    """What streams of all kinds do."""

    def __init__(self, ptr: int, device_id: int) -> None:
        self.ptr = ptr
        self.device_id = device_id

    @property
    def queue(self) -> Queue:
        """The work of the stream; CuPy has no such property."""
        return machine.queue(self.ptr)

    def synchronize(self) -> None:
        runtime.streamSynchronize(self.ptr)

    def record(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        runtime.eventRecord(event.ptr, self.ptr)
        return event

    def wait_event(self, event: Any) -> None:
        runtime.streamWaitEvent(self.ptr, event.ptr)

    def begin_capture(self, mode: int | None = None) -> None:
        if self.ptr in LEGACY:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        with machine.lock:
            queue = self.queue
            queue.forbid("a capture begins")
            queue.capture, queue.front = Capture(queue), frozenset()

    def end_capture(self) -> "Graph":
        with machine.lock:
            queue = self.queue
            if queue.capture is None:
                raise CUDARuntimeError(1, "no capture has begun")
            capture = queue.capture
            if capture.origin is not queue:
                queue.spoil(CAPTURE_UNMATCHED)
            capture.end()
            machine.captures += 1
            return Graph(capture)

    def is_capturing(self) -> bool:
        return self.queue.capture is not None


LEGACY = (0, 1)
"""The two handles of the default stream."""


class Stream(_BaseStream):
    """A stream of the current GPU, or one that another library made and keeps.

    Its finalizer destroys a stream of its own, also while others in the same garbage still use it.
    """

    _foreign_stream_ref: Any

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        flags = runtime.streamNonBlocking if non_blocking else runtime.streamDefault
        super().__init__(runtime.streamCreateWithFlags(flags), machine.current)
        self._foreign_stream_ref = None

    @classmethod
    def from_external(cls, obj: Any) -> "Stream":
        """The stream that `obj` tells by CUDA's protocol for streams; keeps `obj`."""
        if not hasattr(obj, "__cuda_stream__"):
            raise TypeError(f"{type(obj).__name__} has no __cuda_stream__")
        version, ptr = obj.__cuda_stream__()
        if version != 0:
            raise ValueError(f"version {version} of the protocol for streams; 0 is known")
        if ptr == 0:  # the legacy default stream, known from the first request on
            machine.queues.setdefault(0, Queue(machine.current, 0))
        machine.queue(ptr)
        stream = cls.__new__(cls)
        _BaseStream.__init__(stream, ptr, -1)
        stream._foreign_stream_ref = obj
        return stream

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if _finalizing():
            return
        if self._foreign_stream_ref is not None:
            self._foreign_stream_ref = None
            return
        runtime.streamDestroy(self.ptr)


class Graph:
    """Work that was captured; `cuda.bindings` finds it by its handles."""

    def __init__(self, capture: Capture) -> None:
        self.captured = capture
        self._ordinal = capture.origin.ordinal
        self.graph, self.graphExec = capture.handle, capture.handle + 1
        machine.graphs[self.graph] = machine.graphs[self.graphExec] = self

    def launch(self, stream: Any = None) -> None:
        assert stream is not None, "the stand-in has no current stream"
        with machine.lock:
            queue = machine.queue(stream.ptr)
            if queue.ordinal != self._ordinal:
                raise CUDARuntimeError(INVALID_HANDLE, "a graph of another GPU")
            machine.check(self._ordinal)
            machine.graph_launches += 1
            for number in self.captured.order():
                queue.put(self.captured.jobs[number])


class PinnedMemory:
    """Pinned memory of the host, given back with this object."""

    def __init__(self, size: int, flags: int = 0) -> None:
        self.size = size
        self._allocation = runtime.pinned(size)
        self.ptr = self._allocation.start

    def __del__(self) -> None:
        # CUDA does not promise to wait for work that uses the memory.
        if hasattr(self, "_allocation") and machine.knows(self._allocation):
            machine.forget(self._allocation)


class PinnedMemoryPointer:
    """A place in pinned memory, which it keeps alive; has the buffer protocol."""

    def __new__(cls, mem: PinnedMemory, offset: int) -> Any:
        # Classes have no buffer protocol before Python 3.12; those of ctypes do.
        kind = type("PinnedMemoryPointer", (ctypes.c_uint8 * (mem.size - offset),), {})
        pointer = kind.from_address(mem.ptr + offset)
        pointer.mem, pointer.ptr = mem, mem.ptr + offset
        return pointer


def get_elapsed_time(start_event: Any, end_event: Any) -> float:
    """Milliseconds between two events."""
    return runtime.eventElapsedTime(start_event.ptr, end_event.ptr)
