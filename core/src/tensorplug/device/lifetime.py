"""`Resource`: what owns memory or driver objects, closes in order, and knows who still uses it."""

import itertools
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, final
from weakref import ref

from tensorplug.errors import Closed, ConcurrentUse, DeviceError, LiveChildren
from tensorplug.system.forks import in_child, keep_for_ever


class Resource:
    """Something with `close()` that works in `with`. Children keep their parents alive."""

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
        """True in a forked child that cannot use this: there only `close()` works."""
        if parent is not None:
            parent._children[self._age] = ref(self)
        else:
            in_child(self)

    @property
    def closed(self) -> bool:
        """Whether `close()` has run."""
        return self._closed

    @property
    def children(self) -> "list[Resource]":
        """What was made from this and is still open, oldest first."""
        living = (reference() for reference in list(self._children.values()))
        return [child for child in living if child is not None and not child.closed]

    def check_open(self) -> None:
        """Raise Closed after `close()`, DeviceError in a forked child that cannot use this."""
        if self._closed:
            raise Closed(f"{self!r}: is closed; make a new one")
        self.check_process()

    @final
    def check_process(self) -> None:
        """Raise DeviceError where a driver knows this from before a fork, which it cannot follow.

        What calls a driver asks this first, as its calls may hang for ever.
        """
        if self.lost_by_fork:
            raise DeviceError(
                f"{self!r}: was made before this process was forked, and its driver does not work "
                "in the child; start processes by spawn or forkserver, or open devices only after "
                "the fork"
            )

    def _survives_fork(self) -> bool:
        """Whether it works in a forked child, as what it was made from does."""
        return self.parent is None or self.parent._survives_fork()

    def _renew_after_fork(self) -> None:
        """Called in a forked child before anything else, parents first: make new locks."""
        self._closing = threading.Lock()
        self.lost_by_fork = not self._survives_fork()
        if self.lost_by_fork:
            # Finalizers of driver objects would call the driver.
            keep_for_ever(vars(self))
        for child in self.children:
            child._renew_after_fork()

    @final
    def close(self, *, force: bool = False) -> None:
        """Finish the work queued on this, then give back what it owns. A second call does nothing.

        In a forked child, what a driver knows from before the fork is only forgotten. Raises
        LiveChildren while children are open; with `force` closes them first, newest first.
        """
        if self._closed:
            return
        living = self.children
        if living and not force:
            names = ", ".join(repr(child) for child in living[:5])
            many = "1 child is" if len(living) == 1 else f"{len(living)} children are"
            raise LiveChildren(
                f"{self!r}: {many} open: {names}; close what was made from it first, or use "
                "close(force=True)"
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
        """Wait for queued work that uses what this owns; called before `_close`."""

    def _close(self) -> None:
        """Give back what this owns; called once, when no queued work uses it any more."""

    def _abandon(self) -> None:
        """Called in place of `_close` when nobody holds this any more."""
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
        # At interpreter exit drivers may be gone already, and so may be the names of modules: their
        # memory goes with the process.
        if _finalizing() or getattr(self, "_closed", True):
            return
        # Garbage in a cycle is finalized in any order: then the last child takes the parent along.
        self._orphaned = True
        if not self._children:
            self._let_go()

    def _let_go(self) -> None:
        self._closed = True
        try:
            if not self.lost_by_fork:
                self._finish()
                self._abandon()
        except Exception:  # noqa: BLE001 - a finalizer has nobody to raise to
            pass
        finally:
            self._leave()

    def _leave(self) -> None:
        parent = self.parent
        if parent is None:
            return
        parent._children.pop(self._age, None)
        if parent._orphaned and not parent._children and not parent._closed:
            parent._let_go()

    def _closes_now(self) -> bool:
        with self._closing:
            first, self._closed = not self._closed, True
        return first


class Turnstile:
    """Lets one thread at a time through, and raises for the second instead of making it wait."""

    def __init__(self, what: str, error: type[ConcurrentUse] = ConcurrentUse) -> None:
        self._lock = threading.Lock()
        self._what = what
        self._error = error
        in_child(self)

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise self._error(
                f"{self._what}: entered while another thread or call runs it; give each thread "
                "its own"
            )

    def __exit__(self, *_: object) -> None:
        # `suppress` would cost each run of a plan or schedule some microseconds.
        try:  # noqa: SIM105
            self._lock.release()
        except RuntimeError:
            pass  # a child that was forked inside has a new lock, which it did not take

    def _renew_after_fork(self) -> None:
        self._lock = threading.Lock()
