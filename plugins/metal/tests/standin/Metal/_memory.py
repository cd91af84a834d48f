"""Buffers: memory of this process between guards, or pages that the caller owns."""

import ctypes
import mmap
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from Metal._machine import GUARD, PATTERN, UNWRITTEN, Gpu, machine, need

PRIVATE = 2
"""The storage mode, in bits 4 to 7 of the options."""
ALIGNMENT = 256


class varlist:
    """A pointer of unknown length, as PyObjC has it."""

    def __init__(self, address: int, size: int) -> None:
        self._address, self._size = address, size

    def as_buffer(self, count: int) -> memoryview:
        """The first `count` bytes, which are not checked on a Mac."""
        need(0 < count <= self._size, f"{count} bytes of a buffer of {self._size}")
        return memoryview((ctypes.c_char * count).from_address(self._address)).cast("B")


class Buffer:
    """MTLBuffer."""

    def __init__(self, gpu: Gpu, size: int, options: int, pages: memoryview | None = None) -> None:
        need(0 < size <= gpu.max_buffer, f"a buffer of {size} bytes, at most {gpu.max_buffer}")
        mode = options >> 4 & 15
        need(mode in (0, PRIVATE), f"storage mode {mode}, which the backend has no use for")
        self.gpu, self.size, self.private = gpu, size, mode == PRIVATE
        self.untracked = bool(options & 0x100)
        self._label, self._pages, self._room = "", pages, np.empty(0, np.uint8)
        if pages is None:
            self._room = np.full(size + 2 * GUARD + ALIGNMENT, PATTERN, np.uint8)
            start = GUARD + -(self._room.ctypes.data + GUARD) % ALIGNMENT
            self.address = int(self._room.ctypes.data) + start
            self._room[start : start + size] = UNWRITTEN
            gpu.allocated += size
        else:
            self.address = int(np.frombuffer(pages, np.uint8).ctypes.data)

    @property
    def bytes(self) -> Any:
        """All of it, for the GPU."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.size).from_address(self.address))

    def length(self) -> int:
        return self.size

    def contents(self) -> varlist | None:
        return None if self.private else varlist(self.address, self.size)

    def storageMode(self) -> int:
        return PRIVATE if self.private else 0

    def setLabel_(self, label: str) -> None:
        self._label = label

    def label(self) -> str:
        return self._label

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if _finalizing() or not getattr(self, "_room", np.empty(0)).size:
            return
        self.gpu.allocated -= self.size
        start = self.address - int(self._room.ctypes.data)
        around = np.concatenate([self._room[:start], self._room[start + self.size :]])
        if (around != PATTERN).any():
            machine.fault(f"something wrote outside of a buffer of {self.size} bytes")


def wrapped(gpu: Gpu, pages: Any, length: int, options: int) -> Buffer | None:
    """A buffer over pages of the host, or nil where Metal takes them for no whole pages."""
    view = memoryview(pages).cast("B")
    need(view.nbytes == length, f"{length} bytes asked for of {view.nbytes}")
    address = int(np.frombuffer(view, np.uint8).ctypes.data)
    need(options >> 4 & 15 != PRIVATE, "private storage of the host's pages")
    if address % mmap.PAGESIZE or length % mmap.PAGESIZE or not 0 < length <= gpu.max_buffer:
        return None
    return Buffer(gpu, length, options, view)
