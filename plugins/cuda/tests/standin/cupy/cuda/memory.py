"""Memory of a GPU, and pointers into it."""

import sys
from collections.abc import Callable
from typing import Any

from cupy._machine import CUDARuntimeError, machine


class OutOfMemoryError(MemoryError):
    """What CuPy's pool raises; memory of the driver itself fails with a status."""


class Memory:
    """Memory of the current GPU, given back with this object."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.device_id = machine.current
        self._allocation = machine.malloc(size)
        self.ptr = self._allocation.start

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        allocation = getattr(self, "_allocation", None)
        if allocation is not None and not allocation.freed and not _finalizing():
            machine.free(allocation)


class UnownedMemory:
    """Memory that another library owns."""

    def __init__(self, ptr: int, size: int, owner: object, device_id: int = -1) -> None:
        self.ptr = ptr
        self.size = size
        self._owner = owner
        if device_id == -1:
            found = machine.find(ptr)
            if found is None or found.ordinal is None:
                raise CUDARuntimeError(1, "not memory of a GPU")
            device_id = found.ordinal
        self.device_id = device_id


class MemoryPointer:
    """A place in memory, which it keeps alive."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem = mem
        self.ptr = mem.ptr + offset
        self.device_id = mem.device_id

    def __add__(self, offset: int) -> "MemoryPointer":
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)
