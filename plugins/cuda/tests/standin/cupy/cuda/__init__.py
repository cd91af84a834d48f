"""Devices, streams, events and graphs."""

import ctypes
from types import TracebackType
from typing import Any

import numpy as np

from cupy._machine import (
    CAPTURE_ISOLATION,
    CAPTURE_UNMATCHED,
    CAPTURED_EVENT,
    INVALID_HANDLE,
    NOT_READY,
    Capture,
    CUDARuntimeError,
    Queue,
    machine,
)
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
    """A mark; those that were never recorded are done."""

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        self.ordinal = machine.current
        self.timed = not disable_timing
        self.queue: Queue | None = None
        self.position = 0
        self.clock = 0.0
        self.captured: tuple[Capture, frozenset[int]] | None = None
        """The capture in which it was recorded, and what comes before it there."""
        self.ptr = machine.new_handle()
        machine.events[self.ptr] = self

    def forbid(self, what: str) -> None:
        """Fail for a call that is forbidden with an event that is part of a capture."""
        if self.captured is not None:
            self.captured[0].invalid = True
            raise CUDARuntimeError(CAPTURED_EVENT, what)

    @property
    def done(self) -> bool:
        return runtime.eventQuery(self.ptr) == 0

    def status(self) -> int:
        """Whether the work before it is done; each call does some of it."""
        with machine.lock:
            self.forbid("an event is looked at")
            if self.queue is None:
                return 0
            self.queue.run(min(self.queue.done + 1, self.position))
            error = machine.gpus[self.queue.ordinal].error
            if error is not None:
                return error.status
            return 0 if self.queue.done >= self.position else NOT_READY

    def record(self, stream: "_Stream | None" = None) -> None:
        assert stream is not None, "the stand-in has no current stream"
        stream.record(self)

    def synchronize(self) -> None:
        with machine.lock:
            self.forbid("an event is waited for")
            if self.queue is not None:
                machine.waits += 1
                self.queue.run(self.position)
                machine.check(self.queue.ordinal)


class _Stream:
    """What streams of all kinds do."""

    queue: Queue

    @property
    def ptr(self) -> int:
        return self.queue.ptr

    @property
    def device_id(self) -> int:
        return self.queue.ordinal

    @property
    def done(self) -> bool:
        with machine.lock:
            self.queue.run(self.queue.done + 1)
            return self.queue.done >= self.queue.queued

    def synchronize(self) -> None:
        with machine.lock:
            self.queue.forbid("the stream is waited for")
            machine.waits += 1
            self.queue.run(self.queue.queued)
            machine.check(self.queue.ordinal)

    def record(self, event: Event | None = None) -> Event:
        with machine.lock:
            event = Event() if event is None else event
            if event.ordinal != self.queue.ordinal:
                raise CUDARuntimeError(INVALID_HANDLE, "an event of another GPU")
            machine.check(self.queue.ordinal)
            if self.queue.capture is not None:
                event.captured = self.queue.capture, self.queue.front
            else:
                event.captured = None
                event.queue, event.position = self.queue, self.queue.queued
                event.clock = self.queue.clock
            return event

    def wait_event(self, event: Event) -> None:
        with machine.lock:
            first, position = event.queue, event.position
            if event.captured is not None:
                self.queue.join(*event.captured)
            elif first is not None and self.queue.capture is not None:
                self.queue.spoil(CAPTURE_ISOLATION)
            elif first is not None:
                self.queue.put(lambda: first.run(position))

    def begin_capture(self, mode: int | None = None) -> None:
        with machine.lock:
            self.queue.forbid("a capture begins")
            self.queue.capture, self.queue.front = Capture(self.queue), frozenset()

    def end_capture(self) -> "Graph":
        with machine.lock:
            capture = self.queue.capture
            if capture is None:
                raise CUDARuntimeError(1, "no capture has begun")
            if capture.origin is not self.queue:
                self.queue.spoil(CAPTURE_UNMATCHED)
            capture.end()
            machine.captures += 1
            return Graph(capture)

    def is_capturing(self) -> bool:
        return self.queue.capture is not None


class Stream(_Stream):
    """A stream of the current GPU, or one that another library made and keeps."""

    _theirs: Any = None

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        assert non_blocking, "the backend's streams do not wait for the default stream"
        self.queue = machine.new_queue()

    @classmethod
    def from_external(cls, obj: Any) -> "Stream":
        """The stream that `obj` tells by CUDA's protocol for streams."""
        if not hasattr(obj, "__cuda_stream__"):
            raise TypeError(f"{type(obj).__name__} has no __cuda_stream__")
        version, ptr = obj.__cuda_stream__()
        if version != 0:
            raise TypeError(f"version {version} of the protocol for streams; 0 is known")
        stream = cls.__new__(cls)
        if ptr == 0:  # the legacy default stream, known from the first request on
            machine.queues.setdefault(0, Queue(machine.current, 0))
        stream.queue, stream._theirs = machine.queue(ptr), obj
        return stream

    def __del__(self) -> None:
        if hasattr(self, "queue") and self._theirs is None:
            machine.retire(self.queue)


class Graph:
    """Work that was captured; `cuda.bindings` finds it by its handles."""

    def __init__(self, capture: Capture) -> None:
        self.captured = capture
        self._ordinal = capture.origin.ordinal
        self.graph, self.graphExec = capture.handle, capture.handle + 1
        machine.graphs[self.graph] = machine.graphs[self.graphExec] = self

    def launch(self, stream: _Stream | None = None) -> None:
        assert stream is not None, "the stand-in has no current stream"
        with machine.lock:
            if stream.queue.ordinal != self._ordinal:
                raise CUDARuntimeError(INVALID_HANDLE, "a graph of another GPU")
            machine.check(self._ordinal)
            machine.graph_launches += 1
            for number in self.captured.order():
                stream.queue.put(self.captured.jobs[number])


class PinnedMemory:
    """Pinned memory of the host, given back with this object."""

    def __init__(self, size: int, flags: int = 0) -> None:
        self.size = size
        self._allocation = runtime.pinned(size)
        self.ptr = self._allocation.start

    def __del__(self) -> None:
        if hasattr(self, "_allocation") and machine.knows(self._allocation):
            for ordinal in range(len(machine.gpus)):
                machine.synchronize_device(ordinal, capturing=True)
            machine.forget(self._allocation)


class PinnedMemoryPointer:
    """A place in pinned memory, which it keeps alive; has the buffer protocol."""

    def __new__(cls, mem: PinnedMemory, offset: int) -> Any:
        # Classes have no buffer protocol before Python 3.12; those of ctypes do.
        kind = type("PinnedMemoryPointer", (ctypes.c_uint8 * (mem.size - offset),), {})
        pointer = kind.from_address(mem.ptr + offset)
        pointer.mem, pointer.ptr = mem, mem.ptr + offset
        return pointer


def get_elapsed_time(start: Event, end: Event) -> float:
    """Milliseconds between two marks, by the clock of the stream, as a float of 32 bits."""
    if not (start.timed and end.timed):
        raise CUDARuntimeError(INVALID_HANDLE, "an event without timing")
    if not (start.done and end.done):
        raise CUDARuntimeError(NOT_READY, "an event is not reached")
    return float(np.float32(end.clock - start.clock))
