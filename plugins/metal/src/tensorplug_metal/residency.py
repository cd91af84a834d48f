"""Memory that macOS keeps where the GPU reaches it, from macOS 15 on."""

import threading
from collections.abc import Iterable
from typing import Any

import Metal

from tensorplug_metal.errors import made
from tensorplug_metal.facts import has_residency_sets


class Residency:
    """The residency set of a device: all of its buffers. Does nothing on older systems.

    Without it the driver makes memory resident again for each command buffer, and may page out
    weights that were not used for some seconds. Thread-safe.
    """

    def __init__(self, handle: Any, name: str) -> None:
        # The collector of garbage may close a buffer while another is added.
        self._lock = threading.RLock()
        self._set: Any = None
        if has_residency_sets():
            wanted = Metal.MTLResidencySetDescriptor.alloc().init()
            wanted.setLabel_(f"tensorplug {name}")
            asked = handle.newResidencySetWithDescriptor_error_(wanted, None)
            self._set = made(asked, f"{name}: residency set")
            self._set.requestResidency()

    def add(self, buffers: Iterable[Any]) -> None:
        """Keep buffers of Metal's from now on."""
        self._change("addAllocation_", buffers)

    def remove(self, buffers: Iterable[Any]) -> None:
        """Keep buffers no more."""
        self._change("removeAllocation_", buffers)

    def _change(self, call: str, buffers: Iterable[Any]) -> None:
        if self._set is None:
            return
        with self._lock:
            for buffer in buffers:
                getattr(self._set, call)(buffer)
            self._set.commit()

    def attach(self, queue: Any) -> None:
        """Let the work of a queue find the buffers there."""
        if self._set is not None:
            queue.addResidencySet_(self._set)

    def close(self) -> None:
        """Let everything go."""
        if self._set is not None:
            self._set.endResidency()
            self._set = None
