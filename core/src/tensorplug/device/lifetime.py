"""`Resource`: the base class of objects that own memory or driver objects and must be closed."""

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Self, final
from weakref import ref

from tensorplug.errors import Closed, ConcurrentUse, DeviceError, LiveChildren
from tensorplug.system.forks import in_child, keep_for_ever

NOBODY = 0
"""No thread has this number."""


class Resource:
    """An object with `close()`, for use in `with`. A child keeps its parent alive."""

    def __init__(self, parent: "Resource | None" = None) -> None:
        if parent is not None:
            parent.check_open()
        self.parent = parent
        self._children: dict[int, ref[Resource]] = {}
        self._ages = itertools.count()
        self._age = next(parent._ages) if parent is not None else 0
        self._closing = threading.Lock()
        self._orphaned = False
        self._closed = False
        self.lost_by_fork = False
        """True in a forked child that cannot use this object: there only `close()` works."""
        if parent is not None:
            parent._children[self._age] = ref(self)
        else:
            in_child(self)

    @property
    def closed(self) -> bool:
        """True after `close()`."""
        return self._closed

    @property
    def children(self) -> "list[Resource]":
        """Objects that were made from this one and are still open, oldest first."""
        living = (reference() for reference in list(self._children.values()))
        return [child for child in living if child is not None and not child.closed]

    def check_open(self) -> None:
        """Raise Closed after `close()`, and DeviceError in a forked child that cannot use this."""
        if self._closed:
            raise Closed(f"{self!r}: is closed; make a new one")
        self.check_process()

    @final
    def check_process(self) -> None:
        """Raise DeviceError in a forked child whose driver does not work after a fork.

        Methods that call the driver check this first, because calls to it may hang forever.
        """
        if self.lost_by_fork:
            raise DeviceError(
                f"{self!r}: was made before this process was forked, and its driver does not work "
                "in the child; start processes by spawn or forkserver, or open devices only after "
                "the fork"
            )

    def _survives_fork(self) -> bool:
        """True if the object works in a forked child. By default, if its parent does."""
        return self.parent is None or self.parent._survives_fork()

    def _renew_after_fork(self) -> None:
        """Make new locks. Called in a forked child before other code, for parents first."""
        self._closing = threading.Lock()
        self.lost_by_fork = not self._survives_fork()
        if self.lost_by_fork:
            # Finalizers of driver objects would call the driver, so these objects are never freed.
            keep_for_ever(vars(self))
        for child in self.children:
            child._renew_after_fork()

    @final
    def close(self, *, force: bool = False) -> None:
        """Wait for work queued on this object, then release what it owns. Idempotent.

        In a forked child objects of a driver are only forgotten. Raises LiveChildren while children
        are open; with `force` the children are closed first, newest first.
        """
        if self._closed:
            return
        with self._apart():
            self._close_all(force=force)

    def _apart(self) -> AbstractContextManager[None]:
        """Held while this object and its children close; waits for other threads that use them."""
        return nullcontext()

    def _close_all(self, *, force: bool) -> None:
        living = self.children
        if living and not force:
            names = ", ".join(repr(child) for child in living[:5])
            many = "1 child is" if len(living) == 1 else f"{len(living)} children are"
            raise LiveChildren(
                f"{self!r}: {many} open: {names}; close them first, or use close(force=True)"
            )
        for child in reversed(living):
            child.close(force=True)
        if self.lost_by_fork:
            self._closed = True
            self._leave()
            return
        try:
            self._finish()
        finally:
            if self._closes_now():
                self._close()
                self._leave()

    def _finish(self) -> None:
        """Wait for queued work that uses what this object owns. Called before `_close`."""

    def _close(self) -> None:
        """Release what this object owns. Called once, when no queued work uses it any more."""

    def _abandon(self) -> None:
        """Called instead of `_close` when the object is garbage and was not closed."""
        self._close()

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

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At interpreter exit drivers and names of modules may be gone already. The process ends, so
        # nothing has to be released.
        if _finalizing() or getattr(self, "_closed", True):
            return
        # Garbage in a cycle is finalized in any order; the last child then closes the parent.
        self._orphaned = True
        if not self._children:
            self._let_go()

    @final
    def _let_go(self) -> None:
        self._closed = True
        try:
            if not self.lost_by_fork:
                self._finish()
                self._abandon()
        except Exception:  # noqa: BLE001 - a finalizer cannot raise to a caller
            pass
        finally:
            self._leave()

    @final
    def _leave(self) -> None:
        parent = self.parent
        if parent is None:
            return
        parent._children.pop(self._age, None)
        if parent._orphaned and not parent._children and not parent._closed:
            parent._let_go()

    @final
    def _closes_now(self) -> bool:
        with self._closing:
            first, self._closed = not self._closed, True
        return first


class Turnstile:
    """A guard for one thread at a time: the second thread gets an error instead of waiting."""

    def __init__(self, what: str, error: type[ConcurrentUse] = ConcurrentUse) -> None:
        self._lock = threading.Lock()
        self._owner = NOBODY
        self._is_closing = False
        self._what = what
        self._error = error
        in_child(self)

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise self._error(
                f"{self._what}: entered while another thread or call runs it; give each thread "
                "its own"
            )
        self._owner = threading.get_ident()

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Wait for the thread inside, then let none in. May be entered again while it is held.

        Raises the error where the thread that is inside closes what it runs.
        """
        if self._owner == threading.get_ident():
            if not self._is_closing:
                raise self._error(f"{self._what}: closed by a call that it runs; close it later")
            yield
            return
        self._lock.acquire()
        self._owner, self._is_closing = threading.get_ident(), True
        try:
            yield
        finally:
            self._is_closing = False
            self.__exit__()

    def __exit__(self, *_: object) -> None:
        self._owner = NOBODY
        # contextlib.suppress would cost some microseconds in each run of a plan or schedule.
        try:  # noqa: SIM105
            self._lock.release()
        except RuntimeError:
            pass  # in a child that was forked inside `with`, the lock is new and not locked

    def _renew_after_fork(self) -> None:
        self._lock = threading.Lock()
        self._owner, self._is_closing = NOBODY, False
