"""Streams and events of CUDA that live until the last reference to them is gone.

Python finalizes the objects of a garbage cycle in any order, and buffers, plans and backends wait
for streams and events in their finalizers. CuPy's `Stream` and `Event` destroy the driver's object
in theirs, and the driver crashes when it is asked to wait for a destroyed stream. So the handles
here are hidden from the garbage collector: Python frees them after all finalizers have run.
"""

import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from ctypes import PYFUNCTYPE, py_object, pythonapi
from typing import Any, NamedTuple, Self

from cupy import cuda
from cupy.cuda import runtime

from tensorplug.system.forks import in_child

_untrack = PYFUNCTYPE(None, py_object)(("PyObject_GC_UnTrack", pythonapi))
"""Hide an object from the garbage collector."""


class Driver:
    """Knows whether this process may destroy handles.

    The driver does not work in a forked child of a process that has used it: calls may hang.
    """

    def __init__(self) -> None:
        self.used = False
        """True once there was a handle."""
        self.lost = False
        """True in a forked child whose parent had handles."""
        in_child(self)

    def _renew_after_fork(self) -> None:
        self.lost = self.used


_driver = Driver()


class Handle(int):
    """The address of an object of the driver, which is destroyed when the handle is freed."""

    __slots__ = ()

    def __new__(cls, address: int) -> Self:
        made = super().__new__(cls, address)
        _driver.used = True
        # A handle refers to nothing, so the garbage collector is not needed to free it.
        if gc.is_tracked(made):
            _untrack(made)
        return made

    def _destroy(self) -> None:
        """Destroy the object of the driver."""

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if _finalizing() or _driver.lost:
            return
        # The calls fail on a GPU that is lost, and a finalizer cannot raise to a caller.
        with suppress(runtime.CUDARuntimeError):
            self._destroy()


class StreamHandle(Handle):
    """The address of a stream."""

    __slots__ = ()

    def _destroy(self) -> None:
        runtime.streamDestroy(self)


class EventHandle(Handle):
    """The address of an event."""

    __slots__ = ()

    def _destroy(self) -> None:
        runtime.eventDestroy(self)


class Mark:
    """An event of the current GPU, for `record` and `wait_event` of streams."""

    __slots__ = ("ptr",)

    def __init__(self, *, timed: bool = False) -> None:
        flags = runtime.eventDefault if timed else runtime.eventDisableTiming
        self.ptr = EventHandle(runtime.eventCreateWithFlags(flags))

    @property
    def status(self) -> int:
        """CUDA's status of the work before the mark: 0 when it is done."""
        status: int = runtime.eventQuery(self.ptr)
        return status

    def synchronize(self) -> None:
        """Wait for the work before the mark."""
        runtime.eventSynchronize(self.ptr)

    def since(self, earlier: "Mark") -> float:
        """Milliseconds from `earlier` to this mark. Both were made with `timed`."""
        milliseconds: float = runtime.eventElapsedTime(earlier.ptr, self.ptr)
        return milliseconds


class Address(NamedTuple):
    """The address of a stream, for CuPy: an object with CUDA's protocol for streams."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


class Stream(cuda.Stream):  # type: ignore[misc]
    """A stream that CuPy uses and never destroys. It keeps its `Address`, and so its handle."""

    def __del__(self) -> None:
        """Do nothing: CuPy's finalizer would let go of the handle before other finalizers run."""


def new_stream() -> Any:
    """A `Stream` of the current GPU that does not wait for CUDA's default stream."""
    handle = StreamHandle(runtime.streamCreateWithFlags(runtime.streamNonBlocking))
    return Stream.from_external(Address(handle))


def foreign_stream(address: int) -> Any:
    """The `Stream` of another library at an address; that library destroys it."""
    return Stream.from_external(Address(address))
