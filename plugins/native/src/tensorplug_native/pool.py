"""`Pool`: the threads of the library that run a program together."""

import ctypes
import os
import re
import sys
import threading
import weakref
from collections.abc import Sequence

from tensorplug.device import OptionError
from tensorplug.system.forks import in_child
from tensorplug_cpu.threads import check_threads
from tensorplug_native.library import library

_PROCESSORS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
"""A processor or a range of them; no system has 100,000."""


def usable_processors() -> frozenset[int]:
    """Processors on which threads of this process can be kept."""
    if sys.platform != "linux":
        return frozenset()
    return frozenset(os.sched_getaffinity(0))


def parse_processors(text: str) -> tuple[int, ...]:
    """Numbers of processors from a list such as `0,2` or `4-7`. Raises OptionError."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        match = _PROCESSORS.fullmatch(part.strip())
        named = range(int(match[1]), int(match[2] or match[1]) + 1) if match else ()
        if not named:
            raise OptionError(
                f"affinity={text}: {part.strip()!r} is not a processor; "
                "give numbers such as 0,2 or 4-7"
            )
        found += named
    return tuple(found)


class Pool:
    """`count` threads, the caller's own among them. They start with the first run.

    They end with `close()`, or with the last reference to the pool; in a forked child the next run
    starts others. Each stays on one of `processors`, in turn, the caller's own while it runs a
    program; without any they may run anywhere. Raises OptionError.
    """

    def __init__(self, count: int, processors: Sequence[int] = ()) -> None:
        check_threads("Pool", count)
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
        in_child(self)

    def _renew_after_fork(self) -> None:
        self._lock = threading.Lock()
        if self._end is not None:
            # The parent's threads are not here: waiting for their end would hang.
            self._end.detach()
        self._end = self._handle = None

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
                # Threads end with the process; waiting for them at that time could only hang.
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
