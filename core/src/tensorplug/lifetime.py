"""`Resource`: what owns memory or driver objects, closes in order, and knows who still uses it."""

import sys
import threading
from types import TracebackType
from typing import Self, final
from weakref import WeakSet

from tensorplug.errors import Closed, ConcurrentUse, LiveChildren


class Resource:
    """Something with `close()` that works in `with`. Children hold their parents, not the reverse."""

    def __init__(self, parent: "Resource | None" = None) -> None:
        self._closed = False
        self._children: WeakSet[Resource] = WeakSet()
        self.parent = parent
        if parent is not None:
            parent.check_open()
            parent._children.add(self)

    @property
    def closed(self) -> bool:
        """Whether `close()` has run."""
        return self._closed

    @property
    def children(self) -> "list[Resource]":
        """What was made from this and is still open."""
        return [child for child in self._children if not child.closed]

    def check_open(self) -> None:
        """Raise Closed after `close()`."""
        if self._closed:
            raise Closed(f"{self!r}: is closed; make a new one")

    @final
    def close(self, *, force: bool = False) -> None:
        """Give back what this owns. A second call does nothing.

        Raises LiveChildren while children are open; with `force` closes them first, newest last use
        finished before.
        """
        if self._closed:
            return
        living = self.children
        if living and not force:
            names = ", ".join(repr(child) for child in living[:5])
            raise LiveChildren(
                f"{self!r}: {len(living)} children are open: {names}; close them first, or use "
                "close(force=True)"
            )
        for child in living:
            child.close(force=True)
        self._closed = True
        self._close()

    def _close(self) -> None:
        """Give back what this owns; called once. Work queued on it must be finished here first."""

    def __enter__(self) -> Self:
        self.check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(force=True)

    def __del__(self) -> None:
        # At interpreter exit drivers may be gone already: their memory goes with the process.
        if sys.is_finalizing() or getattr(self, "_closed", True):
            return
        self._closed = True
        try:
            self._close()
        except Exception:  # noqa: BLE001 - a finalizer has nobody to raise to
            return


class Turnstile:
    """Lets one thread at a time through, and raises for the second instead of making it wait."""

    def __init__(self, what: str, error: type[ConcurrentUse] = ConcurrentUse) -> None:
        self._lock = threading.Lock()
        self._what = what
        self._error = error

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise self._error(
                f"{self._what}: entered while another thread or call runs it; give each thread its own"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()
