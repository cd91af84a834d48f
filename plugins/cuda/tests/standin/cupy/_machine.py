"""Emulated machines with GPUs: the memory of each, and its streams and events by their handles.

Memory of a GPU is memory of this process behind a wall: every address that is given to CUDA is
looked up, and so is every handle.
"""

import bisect
import ctypes
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

if TYPE_CHECKING:
    from cupy._streams import Event, Queue

GUARD = 256
"""Bytes around each allocation that must not be written; also the alignment of its address."""
PATTERN = 0xA5
UNWRITTEN = 0xFF
"""What new memory holds: as floats, these bytes are NaN."""

INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE, INVALID_DEVICE = 1, 2, 100, 101
INVALID_HANDLE, NOT_READY, ILLEGAL_ADDRESS = 400, 600, 700
ALREADY_REGISTERED, NOT_REGISTERED = 712, 713
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_MERGE = 900, 901, 902
CAPTURE_UNMATCHED, CAPTURE_UNJOINED, CAPTURE_ISOLATION, CAPTURED_EVENT = 903, 904, 905, 907
NAMES = {
    1: "cudaErrorInvalidValue: invalid argument",
    2: "cudaErrorMemoryAllocation: out of memory",
    100: "cudaErrorNoDevice: no CUDA-capable device is detected",
    101: "cudaErrorInvalidDevice: invalid device ordinal",
    400: "cudaErrorInvalidResourceHandle: invalid resource handle",
    700: "cudaErrorIllegalAddress: an illegal memory access was encountered",
    712: "cudaErrorHostMemoryAlreadyRegistered: part of the memory is registered already",
    713: "cudaErrorHostMemoryNotRegistered: the memory is not registered",
    900: "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing",
    901: "cudaErrorStreamCaptureInvalidated: operation failed due to a previous error in capture",
    902: "cudaErrorStreamCaptureMerge: dependency between two captures",
    903: "cudaErrorStreamCaptureUnmatched: the capture began in another stream",
    904: "cudaErrorStreamCaptureUnjoined: a stream was not joined to the one that captures",
    905: "cudaErrorStreamCaptureIsolation: dependency on a stream outside of the capture",
    907: "cudaErrorCapturedEvent: the event was recorded by a stream that captures",
}


class CUDARuntimeError(RuntimeError):
    """What CuPy raises for a status of the runtime."""

    def __init__(self, status: int, detail: str = "") -> None:
        super().__init__(NAMES.get(status, f"status {status}") + (f" ({detail})" if detail else ""))
        self.status = status


@dataclass(eq=False)
class Allocation:
    """Memory that CUDA knows: of GPU `ordinal`, or of the host where that is None."""

    start: int
    size: int
    ordinal: int | None
    backing: Any = None
    freed: bool = False

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass
class Gpu:
    """A GPU: what its properties say, and what went wrong on it for good."""

    memory: int = 1 << 28
    allocated: int = 0
    error: CUDARuntimeError | None = None
    properties: dict[str, Any] = field(default_factory=dict)


class Machine:
    """The GPUs of a process, their memory and streams."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.thread = threading.local()
        self.newest = 0x1000
        """The latest handle; no handle is used twice, also not after `reset`."""
        self.reset()

    def reset(self, gpus: int = 1, memory: int = 1 << 28) -> None:
        """A new machine with `gpus` GPUs, each with `memory` bytes."""
        self.gpus = [Gpu(memory, properties=_properties(i, memory)) for i in range(gpus)]
        self.starts: list[int] = []
        self.allocations: dict[int, Allocation] = {}
        self.queues: dict[int, Queue] = {}
        self.faults: list[str] = []
        self.launches = 0
        self.graph_launches = 0
        self.captures = 0
        self.waits = 0
        self.compilations = 0
        self.failing = False
        self.times: dict[str, float] = {}
        """Milliseconds that kernels take, by name; `cublaslt` is a product of the library."""
        self.events: dict[int, Event] = {}
        self.oldest = self.newest
        """Handles up to this one are of earlier machines."""
        self.graphs: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.node_updates = 0

    # --- the device that calls mean --------------------------------------------------------

    @property
    def current(self) -> int:
        """The GPU that calls of this thread mean."""
        return getattr(self.thread, "ordinal", 0)

    @current.setter
    def current(self, ordinal: int) -> None:
        self.gpu(ordinal)
        self.thread.ordinal = ordinal

    def gpu(self, ordinal: int) -> Gpu:
        """A GPU by number."""
        if not self.gpus:
            raise CUDARuntimeError(NO_DEVICE)
        if not 0 <= ordinal < len(self.gpus):
            raise CUDARuntimeError(INVALID_DEVICE)
        return self.gpus[ordinal]

    def check(self, ordinal: int) -> None:
        """Raise what went wrong on a GPU."""
        error = self.gpu(ordinal).error
        if error is not None:
            raise error

    # --- memory ----------------------------------------------------------------------------

    def malloc(self, size: int) -> Allocation:
        """Memory of the current GPU, with guards around it."""
        with self.lock:
            self.no_capture("memory is allocated")
            self.check(self.current)
            gpu = self.gpu(self.current)
            if gpu.allocated + size > gpu.memory:
                raise CUDARuntimeError(OUT_OF_MEMORY)
            backing = np.full(size + 3 * GUARD, PATTERN, np.uint8)
            offset = GUARD + -(backing.ctypes.data + GUARD) % GUARD
            backing[offset : offset + size] = UNWRITTEN
            gpu.allocated += size
            made = Allocation(backing.ctypes.data + offset, size, self.current, backing)
            return self.know(made)

    def free(self, allocation: Allocation) -> None:
        """Give memory of a GPU back, once the GPU has done what it has to do."""
        with self.lock:
            if not self.knows(allocation):
                return  # of a machine that is no more
            assert allocation.ordinal is not None
            self.synchronize_device(allocation.ordinal, capturing=True)
            self.gpus[allocation.ordinal].allocated -= allocation.size
            inside = slice(allocation.start - allocation.backing.ctypes.data, None)
            before = allocation.backing[: inside.start]
            after = allocation.backing[inside.start + allocation.size :]
            if (before != PATTERN).any() or (after != PATTERN).any():
                self.faults.append(f"something wrote outside of {allocation.size} bytes")
            self.forget(allocation)

    def know(self, allocation: Allocation) -> Allocation:
        """Enter memory into what CUDA knows."""
        with self.lock:
            bisect.insort(self.starts, allocation.start)
            self.allocations[allocation.start] = allocation
            return allocation

    def knows(self, allocation: Allocation) -> bool:
        """Whether memory is this machine's, and was not given back."""
        return self.allocations.get(allocation.start) is allocation

    def forget(self, allocation: Allocation) -> None:
        """Take memory out of what CUDA knows."""
        with self.lock:
            allocation.freed = True
            if self.knows(allocation):
                self.starts.remove(allocation.start)
                del self.allocations[allocation.start]

    def find(self, address: int) -> Allocation | None:
        """The memory that an address lies in; None for plain memory of the host."""
        at = bisect.bisect_right(self.starts, address) - 1
        if at < 0:
            return None
        found = self.allocations[self.starts[at]]
        return found if address < found.end else None

    def inside(self, address: int, size: int) -> Allocation | None:
        """The memory that `size` bytes lie in; None for plain memory of the host."""
        found = self.find(address)
        if found is not None and address + size > found.end:
            raise CUDARuntimeError(INVALID_VALUE, f"{size} bytes go beyond the allocation")
        return found

    def on_gpu(self, address: int, size: int, ordinal: int | None = None) -> int:
        """The GPU whose memory `size` bytes from `address` on are; fails for all others."""
        found = self.inside(address, size)
        if found is None or found.ordinal is None:
            raise CUDARuntimeError(INVALID_VALUE, "memory of the host in place of a GPU's")
        if ordinal is not None and found.ordinal != ordinal:
            raise CUDARuntimeError(INVALID_VALUE, f"memory of GPU {found.ordinal}")
        return found.ordinal

    def reachable(self, address: int, ordinal: int) -> Allocation:
        """The memory at `address`, which kernels of a GPU must be able to reach."""
        found = self.find(address)
        if found is None:
            raise CUDARuntimeError(ILLEGAL_ADDRESS, "plain memory of the host, or freed memory")
        if found.ordinal not in (None, ordinal):
            raise CUDARuntimeError(ILLEGAL_ADDRESS, f"memory of GPU {found.ordinal}")
        return found

    # --- streams ---------------------------------------------------------------------------

    def new_handle(self) -> int:
        """A new handle; the next number is free too."""
        with self.lock:
            self.newest += 16
            return self.newest

    def queue(self, handle: int) -> "Queue":
        """The stream with a handle."""
        found = self.queues.get(handle)
        if found is None or found.retired:
            self._no_such("stream", handle)
        return found

    def event(self, handle: int) -> "Event":
        """The event with a handle."""
        found = self.events.get(handle)
        if found is None:
            self._no_such("event", handle)
        return found

    def _no_such(self, what: str, handle: int) -> NoReturn:
        """Fail. A real GPU's driver crashes if the handle was destroyed, so that is a fault too."""
        if self.oldest < handle <= self.newest:
            self.faults.append(f"a destroyed {what} was used")
        raise CUDARuntimeError(INVALID_HANDLE, f"no such {what}")

    def is_earlier(self, handle: int) -> bool:
        """Whether a handle is of an earlier machine, where nothing is left to destroy."""
        return handle <= self.oldest

    def retire(self, queue: "Queue") -> None:
        """Forget a stream that was destroyed, once its work is done."""
        with self.lock:
            queue.retired = True
            if not queue.jobs:
                del self.queues[queue.handle]

    def no_capture(self, what: str) -> None:
        """Fail for a call that a plan must not make while any stream captures.

        CUDA allows some of it in relaxed mode; our own code has to do without.
        """
        for queue in list(self.queues.values()):
            queue.forbid(what)

    def synchronize_device(self, ordinal: int, *, capturing: bool = False) -> None:
        """Do all work of a GPU."""
        with self.lock:
            self.waits += 1
            for queue in [q for q in list(self.queues.values()) if q.ordinal == ordinal]:
                if not capturing:
                    queue.forbid("the device is waited for")
                queue.run(queue.queued)
                if queue.retired:
                    self.retire(queue)


def view(address: int, size: int) -> Any:
    """Bytes at an address."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def alive(allocations: Sequence[Allocation]) -> None:
    """Fail where memory was freed before the work that uses it."""
    if any(allocation.freed for allocation in allocations):
        raise CUDARuntimeError(ILLEGAL_ADDRESS, "memory that was freed")


def _properties(ordinal: int, memory: int) -> dict[str, Any]:
    return {
        "name": b"emulated GPU",
        "major": 8,
        "minor": 0,
        "uuid": bytes(range(ordinal, ordinal + 16)),
        "multiProcessorCount": 2,
        "totalGlobalMem": memory,
        "maxThreadsPerBlock": 1024,
        "sharedMemPerBlock": 48 * 1024,
        "integrated": 0,
        "canUseHostPointerForRegisteredMem": 1,
        "warpSize": 32,
    }


machine = Machine()
