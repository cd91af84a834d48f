"""Forks: replaces locks and thread pools in a forked child process.

A forked child has a single thread. A lock that another thread held at the fork stays locked
forever in the child, and a thread pool has no threads there. Objects with locks or pools register
here; the child replaces their locks and pools before `fork` returns in the child.
"""

import ctypes
import os
from typing import Protocol
from weakref import WeakSet


class Renewed(Protocol):
    """An object with locks or threads."""

    def _renew_after_fork(self) -> None:
        """Make new locks and pools; runs in a forked child, must not wait nor call a driver."""
        ...


_owners: WeakSet[Renewed] = WeakSet()


def in_child(owner: Renewed) -> None:
    """Call `owner._renew_after_fork()` in each forked child while `owner` is alive."""
    _owners.add(owner)


def keep_for_ever(thing: object) -> None:
    """Leak one reference: `thing` and the objects it refers to are never finalized."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _renew_all() -> None:
    for owner in list(_owners):
        owner._renew_after_fork()


if hasattr(os, "register_at_fork"):  # absent on Windows, which cannot fork
    os.register_at_fork(after_in_child=_renew_all)
