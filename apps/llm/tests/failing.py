"""Devices that fail while a text is written."""

import pytest

from tensorplug import Backend
from tensorplug.device import Buffer
from tensorplug.errors import DeviceLost


class Dying:
    """Lets a stream work for some waits, then never again; its memory is garbage then."""

    def __init__(self, patch: pytest.MonkeyPatch, stream: Backend, waits: int) -> None:
        self.stream, self.left = stream, waits
        patch.setattr(stream, "_synchronize", self._wait)

    def _wait(self) -> None:
        self.left -= 1
        if self.left >= 0:
            return
        for child in self.stream.device.children:
            if isinstance(child, Buffer):
                child.fill(0xFF)
        raise DeviceLost(f"{self.stream.name}: the device is gone")
