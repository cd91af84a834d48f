"""`Faults`: what goes wrong on a fake device, and at which of its calls."""

import threading
from collections import Counter
from collections.abc import Callable

from tensorplug.errors import DeviceLost

FAULTS = (
    *("alloc", "write", "read", "copy", "compute"),
    *("plan", "queue", "event", "wait"),
)
"""Calls that can be made to fail: of memory and of queued work, then of streams when asked."""


class Faults:
    """Counts the calls of one device, and does what was planned for one of them. Thread-safe."""

    def __init__(self, name: str) -> None:
        self.lost = False
        self.lock = threading.RLock()
        self.calls: Counter[str] = Counter()
        """How often each of FAULTS was met."""
        self._name = name
        self._planned: dict[tuple[str, int], Callable[[], None]] = {}

    def plan(self, what: str, at: int, action: Callable[[], None]) -> None:
        """Do `action` at the `at`-th call of a kind from now on, once."""
        if what not in FAULTS:
            raise ValueError(f"fail: {what!r} is none of {', '.join(FAULTS)}")
        self._planned[what, self.calls[what] + at] = action

    def check_alive(self) -> None:
        """Raise DeviceLost after the device was lost."""
        if self.lost:
            raise DeviceLost(f"{self._name}: the device is gone; open another")

    def meet(self, what: str) -> None:
        """Count a call; raises what was planned for it."""
        with self.lock:
            self.check_alive()
            self.calls[what] += 1
            action = self._planned.pop((what, self.calls[what]), None)
        if action is not None:
            action()
