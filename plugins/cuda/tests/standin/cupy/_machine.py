"""Emulated machines with GPUs: the memory of each, and the work that is queued on streams.

Memory of a GPU is memory of this process behind a wall: every address that is given to CUDA is
looked up. Work that is queued is done only when something waits for it, so that code which forgets
to wait sees old bytes. What a real GPU would do in the meantime is done step by step, one step each
time that an event is queried.
"""

import bisect
import ctypes
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

GUARD = 256
"""Bytes around each allocation that must not be written; also the alignment of its address."""
PATTERN = 0xA5
UNWRITTEN = 0xFF
"""What new memory holds: as floats, these bytes are NaN."""
TICK = 1e-3
"""Milliseconds that work takes by the clock of its stream, unless a test says otherwise."""

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


class Capture:
    """Work of the streams that take part in a capture: each job, and the jobs that it comes after.

    Any order that keeps these is right, so each run has another one: first the latest job that may
    be done is, then chance decides.
    """

    def __init__(self, origin: "Queue") -> None:
        self.origin = origin
        self.queues = {origin}
        self.jobs: list[Callable[[], None]] = []
        self.after: list[frozenset[int]] = []
        self.handle = machine.new_handle()
        self.invalid = False
        self.over = False
        self._chance: random.Random | None = None

    def add(self, job: Callable[[], None], after: Iterable[int]) -> int:
        """Take a job; returns its number."""
        self.jobs.append(job)
        self.after.append(frozenset(after))
        return len(self.jobs) - 1

    def end(self) -> None:
        """Let go of all streams. Fails for a capture that is spoiled, or misses work at its end."""
        front = self.origin.front
        for queue in self.queues:
            queue.capture, queue.front = None, frozenset()
        self.over = True
        if self.invalid:
            raise CUDARuntimeError(CAPTURE_INVALIDATED)
        if set(range(len(self.jobs))) - set().union(front, *self.after):
            raise CUDARuntimeError(CAPTURE_UNJOINED)

    def order(self) -> list[int]:
        """The numbers of all jobs, each behind those that it comes after."""
        followers: list[list[int]] = [[] for _ in self.jobs]
        waits = [len(after) for after in self.after]
        for number, after in enumerate(self.after):
            for earlier in after:
                followers[earlier].append(number)
        ready = [number for number, count in enumerate(waits) if not count]
        order = []
        while ready:
            ready.sort()
            order.append(ready.pop(self._chance.randrange(len(ready)) if self._chance else -1))
            for number in followers[order[-1]]:
                waits[number] -= 1
                if not waits[number]:
                    ready.append(number)
        self._chance = self._chance or random.Random(len(self.jobs))
        return order


class Queue:
    """The work of one stream, in order."""

    def __init__(self, ordinal: int, ptr: int) -> None:
        self.ordinal = ordinal
        self.ptr = ptr
        self.jobs: deque[Callable[[], None]] = deque()
        self.queued = 0
        self.done = 0
        self.clock = 0.0
        """Milliseconds from the start of the stream to the end of what is queued."""
        self.capture: Capture | None = None
        self.front: frozenset[int] = frozenset()
        """While this captures: the jobs that the next one comes after."""
        self.retired = False

    def put(self, job: Callable[[], None], name: str = "") -> None:
        """Queue a job, or capture it; kernels have names."""
        if self.capture is not None:
            self.front = frozenset([self.capture.add(job, self.front)])
            return
        self.jobs.append(job)
        self.queued += 1
        self.clock += machine.times.get(name, TICK)

    def run(self, end: int) -> None:
        """Do all jobs before number `end`."""
        gpu = machine.gpus[self.ordinal]
        while self.done < end and self.jobs:
            job = self.jobs.popleft()
            try:
                if gpu.error is None:
                    job()
            except CUDARuntimeError as error:
                gpu.error = error
            finally:
                self.done += 1

    def forbid(self, what: str) -> None:
        """Fail for a call that is forbidden while this stream captures; that ends the capture."""
        if self.capture is not None:
            self.spoil(CAPTURE_UNSUPPORTED, what)

    def spoil(self, status: int, what: str = "") -> None:
        """Fail, and so will the end of the capture."""
        assert self.capture is not None
        self.capture.invalid = True
        raise CUDARuntimeError(status, what)

    def join(self, capture: Capture, front: frozenset[int]) -> None:
        """Capture from now on too, behind jobs of `capture`; or be behind these as well."""
        if capture.over:
            raise CUDARuntimeError(CAPTURED_EVENT, "of a capture that is over")
        if self.capture not in (None, capture):
            capture.invalid = True
            self.spoil(CAPTURE_MERGE)
        capture.queues.add(self)
        self.capture, self.front = capture, self.front | front


class Machine:
    """The GPUs of a process, their memory and streams."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.thread = threading.local()
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
        self.next_stream = 0x1000
        self.events: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
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

    def new_queue(self) -> Queue:
        """A stream of the current GPU."""
        with self.lock:
            self.check(self.current)
            queue = Queue(self.current, self.new_handle())
            self.queues[queue.ptr] = queue
            return queue

    def retire(self, queue: Queue) -> None:
        """Forget a stream that was garbage-collected, once its work is done."""
        with self.lock:
            queue.retired = True
            # A stream of an earlier machine may have had the same handle.
            if not queue.jobs and self.queues.get(queue.ptr) is queue:
                del self.queues[queue.ptr]

    def queue(self, ptr: int) -> Queue:
        """The stream with a handle."""
        if ptr not in self.queues:
            raise CUDARuntimeError(INVALID_HANDLE, "no such stream, or the legacy default stream")
        return self.queues[ptr]

    def new_handle(self) -> int:
        """A new handle; the next number is free too."""
        with self.lock:
            self.next_stream += 16
            return self.next_stream

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
