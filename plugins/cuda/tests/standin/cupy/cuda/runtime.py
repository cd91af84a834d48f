"""The runtime's functions, as far as the backend calls them."""

from typing import Any

import numpy as np

from cupy._machine import (
    ALREADY_REGISTERED,
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_READY,
    NOT_REGISTERED,
    Allocation,
    CUDARuntimeError,
    alive,
    machine,
    view,
)
from cupy._streams import Event, Queue

__all__ = ["CUDARuntimeError"]

hostAllocPortable = 1
eventDefault, eventDisableTiming = 0, 2
streamDefault, streamNonBlocking = 0, 1
streamCaptureModeGlobal, streamCaptureModeThreadLocal, streamCaptureModeRelaxed = 0, 1, 2
memcpyDefault = 4
PAGE = 4096


def getDeviceCount() -> int:
    machine.gpu(0)
    return len(machine.gpus)


def getDeviceProperties(device: int) -> dict[str, Any]:
    return dict(machine.gpu(device).properties)


def deviceGetPCIBusId(device: int) -> str:
    machine.gpu(device)
    return f"0000:{0x41 + device:02X}:00.0"


def runtimeGetVersion() -> int:
    return 13000


def driverGetVersion() -> int:
    return 13020


def memGetInfo() -> tuple[int, int]:
    gpu = machine.gpu(machine.current)
    machine.check(machine.current)
    return gpu.memory - gpu.allocated, gpu.memory


def streamCreateWithFlags(flags: int) -> int:
    assert flags == streamNonBlocking, "the backend's streams do not wait for the default stream"
    with machine.lock:
        machine.check(machine.current)
        handle = machine.new_handle()
        machine.queues[handle] = Queue(machine.current, handle)
        return handle


def streamDestroy(stream: int) -> None:
    with machine.lock:
        if not machine.is_earlier(stream):
            machine.retire(machine.queue(stream))


def streamSynchronize(stream: int) -> None:
    with machine.lock:
        machine.queue(stream).synchronize()


def streamWaitEvent(stream: int, event: int, flags: int = 0) -> None:
    with machine.lock:
        machine.queue(stream).wait(machine.event(event))


def eventCreateWithFlags(flags: int) -> int:
    with machine.lock:
        handle = machine.new_handle()
        machine.events[handle] = Event(timed=not flags & eventDisableTiming)
        return handle


def eventDestroy(event: int) -> None:
    with machine.lock:
        if not machine.is_earlier(event):
            machine.event(event)
            del machine.events[event]


def eventRecord(event: int, stream: int) -> None:
    with machine.lock:
        machine.queue(stream).record(machine.event(event))


def eventQuery(event: int) -> int:
    """A status, which CuPy hands on as it is: 0, NOT_READY, or what went wrong on the GPU."""
    with machine.lock:
        return machine.event(event).status()


def eventSynchronize(event: int) -> None:
    with machine.lock:
        machine.event(event).synchronize()


def eventElapsedTime(start: int, end: int) -> float:
    """Milliseconds between two events, by the clock of the stream, as a float of 32 bits."""
    with machine.lock:
        first, last = machine.event(start), machine.event(end)
        if not (first.timed and last.timed):
            raise CUDARuntimeError(INVALID_HANDLE, "an event without timing")
        if first.status() or last.status():
            raise CUDARuntimeError(NOT_READY, "an event is not reached")
        return float(np.float32(last.clock - first.clock))


def memset(ptr: int, value: int, size: int) -> None:
    machine.no_capture("memory is set at once")
    machine.on_gpu(ptr, size)
    view(ptr, size)[:] = value


def memsetAsync(ptr: int, value: int, size: int, stream: int) -> None:
    with machine.lock:
        if machine.inside(ptr, size) is None:
            raise CUDARuntimeError(INVALID_VALUE, "plain memory of the host")
        _queue(stream, [ptr], lambda: view(ptr, size).fill(value))


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    with machine.lock:
        _check(dst, src, size, size, kind)
        _queue(stream, [dst, src], lambda: _move(dst, src, size))


def memcpy2DAsync(
    dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int, stream: int
) -> None:
    if width > min(dpitch, spitch):
        raise CUDARuntimeError(INVALID_VALUE, "rows are longer than their pitch")
    with machine.lock:
        _check(dst, src, (height - 1) * dpitch + width, (height - 1) * spitch + width, kind)

        def rows() -> None:
            for i in range(height):
                _move(dst + i * dpitch, src + i * spitch, width)

        _queue(stream, [dst, src], rows)


def hostRegister(ptr: int, size: int, flags: int) -> None:
    with machine.lock:
        machine.no_capture("memory is registered")
        first, last = ptr // PAGE, (ptr + size - 1) // PAGE
        for known in machine.allocations.values():
            if known.ordinal is None and known.backing is None:
                other = known.start // PAGE, (known.end - 1) // PAGE
                if first <= other[1] and other[0] <= last:
                    raise CUDARuntimeError(ALREADY_REGISTERED)
        machine.know(Allocation(ptr, size, None))


def hostUnregister(ptr: int) -> None:
    with machine.lock:
        known = machine.allocations.get(ptr)
        if known is None or known.ordinal is not None:
            raise CUDARuntimeError(NOT_REGISTERED)
        machine.forget(known)


def pinned(size: int) -> Allocation:
    """Pinned memory of the host."""
    with machine.lock:
        machine.no_capture("memory is pinned")
        backing = np.empty(size + PAGE, np.uint8)
        start = backing.ctypes.data + -backing.ctypes.data % PAGE
        return machine.know(Allocation(start, size, None, backing))


def _check(dst: int, src: int, to: int, of: int, kind: int) -> None:
    """Fail for copies that go beyond what CUDA knows, and for those that a GPU has no part in.

    Addresses of all GPUs differ, so a copy from one to another is like any other.
    """
    if kind != memcpyDefault:
        raise CUDARuntimeError(INVALID_VALUE, f"the stand-in knows no copy of kind {kind}")
    known = [machine.inside(dst, to), machine.inside(src, of)]
    if not any(known):
        raise CUDARuntimeError(INVALID_VALUE, "plain memory of the host on both sides")


def _move(dst: int, src: int, size: int) -> None:
    view(dst, size)[:] = view(src, size)


def _queue(stream: int, addresses: "list[int]", job: Any) -> None:
    queue = machine.queue(stream)
    machine.check(queue.ordinal)
    if queue.capture is not None and any(machine.find(a) is None for a in addresses):
        queue.forbid("memory that is not pinned is copied")
    used = [found for found in map(machine.find, addresses) if found is not None]

    def guarded() -> None:
        alive(used)
        job()

    queue.put(guarded)
