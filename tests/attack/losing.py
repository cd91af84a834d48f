"""`Losing`: a device that works for a number of calls and is gone then, its memory rubbish."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tensorplug import Backend
from tensorplug.device import Buffer
from tensorplug.errors import DeviceLost

STREAM = ("_synchronize", "write_async", "read_async", "copy_async", "record", "wait")
PLAN = ("_run", "_rebind")
BUFFER = ("_write", "_read", "_fill", "_copy_from", "init_tensor")
"""The calls that a device hears, by the object that hears them."""


class Losing:
    """Counts all calls that reach the device of `stream`, and lets all of them fail from one on.

    `moments` names the calls so far. Only closing works on after the loss.
    """

    def __init__(self, patch: pytest.MonkeyPatch, stream: Backend, at: int | None) -> None:
        """Lose the device at its call number `at`, the first being 0; None: never."""
        self.moments: list[str] = []
        self.lost = False
        self._patch, self._device, self._at = patch, stream.device, at
        self._watch(stream, STREAM)
        patch.setattr(stream, "_plan", partial(self._plan, stream._plan))
        kinds = {stream.buffer_type, stream.device.buffer_type, *stream.device.extra_buffer_types}
        for kind in kinds:
            patch.setattr(kind, "_alloc_for", partial(self._alloc, kind._alloc_for))
        for child in stream.device.children:
            if isinstance(child, Buffer):
                self._watch(child, BUFFER)

    def _watch(self, thing: Any, names: tuple[str, ...]) -> None:
        for name in names:
            if hasattr(thing, name):
                call = partial(self._call, name, getattr(thing, name))
                self._patch.setattr(thing, name, call)

    def _plan(self, make: Callable[..., Any], *args: Any) -> Any:
        plan = self._call("_plan", make, *args)
        self._watch(plan, PLAN)
        return plan

    def _alloc(self, make: Callable[..., Any], *args: Any) -> Any:
        buffer = self._call("_alloc", make, *args)
        self._watch(buffer, BUFFER)
        return buffer

    def _call(self, name: str, do: Callable[..., Any], *args: Any, **more: Any) -> Any:
        if not self.lost and len(self.moments) == self._at:
            self._lose()
        if self.lost:
            raise DeviceLost(f"{self._device.name}: the device is gone")
        self.moments.append(name)
        return do(*args, **more)

    def _lose(self) -> None:
        for child in self._device.children:
            if isinstance(child, Buffer) and not child.closed:
                type(child)._fill(child, 0, child.size, 0xFF)
        self.lost = True
