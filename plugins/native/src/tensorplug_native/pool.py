"""`Pool`: the threads of the library that run a program together."""

import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Sequence

from tensorplug.errors import OptionError
from tensorplug_native.library import library


def usable_processors() -> frozenset[int]:
    """Processors on which threads of this process can be kept."""
    if sys.platform != "linux":
        return frozenset()
    return frozenset(os.sched_getaffinity(0))


def parse_processors(text: str) -> tuple[int, ...]:
    """Numbers of processors from a list such as `0,2` or `4-7`. Raises OptionError."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, dash, last = part.strip().partition("-")
        numbers = first.isdecimal() and (last.isdecimal() if dash else True)
        named = range(int(first), int(last or first) + 1) if numbers else ()
        if not named:
            raise OptionError(
                f"affinity={text}: {part.strip()!r} is no processor; "
                "give numbers such as 0,2 or 4-7"
            )
        found += named
    return tuple(found)


class Pool:
    """`count` threads, the caller's own among them. They start with the first run.

    They end with `close()`, or with the last reference to the pool. Each stays on one of
    `processors`, in turn, the caller's own while it runs a program; without any they may run
    anywhere. Raises OptionError.
    """

    def __init__(self, count: int, processors: Sequence[int] = ()) -> None:
        if count < 1:
            raise OptionError(f"Pool: {count} threads; at least one is needed")
        known = usable_processors()
        if missing := sorted(set(processors) - known):
            has = ", ".join(map(str, sorted(known))) or "none, as this system does not pin threads"
            raise OptionError(
                f"Pool: processor {missing[0]} is none that threads can be kept on; those are {has}"
            )
        self.count = count
        self.processors = tuple(processors)
        self._handle: int | None = None
        self._end: weakref.finalize[..., Pool] | None = None
        self._lock = threading.Lock()

    @property
    def handle(self) -> int:
        """What the library calls the pool."""
        with self._lock:
            if self._handle is None:
                handle: int = library().pool_new(
                    *(self.count, (ctypes.c_int * len(self.processors))(*self.processors)),
                    len(self.processors),
                )
                self._handle = handle
                self._end = weakref.finalize(self, library().pool_delete, handle)
                # When the process ends its threads do so too; waiting for them could only hang.
                self._end.atexit = False
            return self._handle

    def close(self) -> None:
        """End the threads; a later run starts new ones."""
        with self._lock:
            end, self._end, self._handle = self._end, None, None
        if end is not None:
            end()

    def __repr__(self) -> str:
        state = "asleep" if self._handle is None else "started"
        return f"<Pool {self.count} threads, {state}>"
