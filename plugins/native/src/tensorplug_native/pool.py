"""`Pool`: the threads of the library that run a program together."""

import threading
import weakref

from tensorplug.errors import OptionError
from tensorplug_native.library import library


class Pool:
    """`count` threads, the caller's own among them. They start with the first run.

    They end with `close()`, or with the last reference to the pool.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise OptionError(f"Pool: {count} threads; at least one is needed")
        self.count = count
        self._handle: int | None = None
        self._end: weakref.finalize[..., Pool] | None = None
        self._lock = threading.Lock()

    @property
    def handle(self) -> int:
        """What the library calls the pool."""
        with self._lock:
            if self._handle is None:
                handle: int = library().pool_new(self.count)
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
