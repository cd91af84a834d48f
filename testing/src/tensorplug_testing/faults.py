"""`Faults`: planned failures of a fake device, each at a given call."""

import threading
from collections import Counter
from collections.abc import Callable

from tensorplug.errors import DeviceLost

FAULTS = (
    *("alloc", "write", "read", "copy", "compute"),
    *("plan", "queue", "event", "wait"),
)
"""Kinds of calls that can fail: memory calls and queued work, then calls of streams."""


class Faults:
    """Counts the calls of one device, and runs the action planned for a call. Thread-safe."""

    def __init__(self, name: str) -> None:
        self.lost = False
        self.lock = threading.RLock()
        self.calls: Counter[str] = Counter()
        """The number of calls of each kind in FAULTS."""
        self._name = name
        self._planned: dict[tuple[str, int], Callable[[], None]] = {}

    def plan(self, what: str, at: int, action: Callable[[], None]) -> None:
        """Run `action` once, at the `at`-th call of kind `what` from now on."""
        if what not in FAULTS:
            raise ValueError(f"fail: {what!r} is none of {', '.join(FAULTS)}")
        self._planned[what, self.calls[what] + at] = action

    def check_alive(self) -> None:
        """Raise DeviceLost after the device was lost."""
        if self.lost:
            raise DeviceLost(f"{self._name}: the device is gone; open another")

    def meet(self, what: str) -> None:
        """Count a call and run its planned action, which may raise."""
        with self.lock:
            self.check_alive()
            self.calls[what] += 1
            action = self._planned.pop((what, self.calls[what]), None)
        if action is not None:
            action()
