"""`Pool`: the threads of the library that run a program together."""

import threading

from tensorplug.errors import OptionError
from tensorplug_native.library import library


class Pool:
    """`count` threads, the caller's own among them. They start with the first run."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise OptionError(f"Pool: {count} threads; at least one is needed")
        self.count = count
        self._handle: int | None = None
        self._lock = threading.Lock()

    @property
    def handle(self) -> int:
        """What the library calls the pool."""
        with self._lock:
            if self._handle is None:
                self._handle = library().pool_new(self.count)
            return self._handle

    def close(self) -> None:
        """End the threads; a later run starts new ones."""
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            library().pool_delete(handle)

    def __repr__(self) -> str:
        state = "asleep" if self._handle is None else "started"
        return f"<Pool {self.count} threads, {state}>"
