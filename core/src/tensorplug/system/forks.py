"""Forks: renews locks and thread pools in a forked child.

A forked child has a single thread. In it, a lock that another thread held stays locked for ever,
and a thread pool has no threads. Owners of locks and pools register here, and renew them before
the child goes on.
"""

import ctypes
import os
from typing import Protocol
from weakref import WeakSet


class Renewed(Protocol):
    """Something with locks or threads."""

    def _renew_after_fork(self) -> None:
        """Make new ones. Called in a forked child; must not wait, nor call a driver."""
        ...


_owners: WeakSet[Renewed] = WeakSet()


def in_child(owner: Renewed) -> None:
    """Call `owner._renew_after_fork()` in each forked child, as long as `owner` lives."""
    _owners.add(owner)


def keep_for_ever(thing: object) -> None:
    """Never finalize `thing` in this process, nor what only it refers to."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _renew_all() -> None:
    for owner in list(_owners):
        owner._renew_after_fork()


if hasattr(os, "register_at_fork"):  # absent on Windows, which cannot fork
    os.register_at_fork(after_in_child=_renew_all)
