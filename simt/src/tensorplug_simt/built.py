"""`Built`: what a device has compiled so far."""

import threading
from collections.abc import Callable, Hashable
from typing import Any


class Built:
    """Programs of one device, each of them built once. Thread-safe."""

    def __init__(self) -> None:
        self._built: dict[Hashable, Any] = {}
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many programs were built or loaded."""
        return len(self._built)

    def once(self, variant: Hashable, build: Callable[[], Any]) -> Any:
        """What `build` returned when it was asked for `variant` first; what it raises is raised."""
        with self._lock:
            found = self._built.get(variant)
            if found is None:
                found = self._built[variant] = build()
        return found
