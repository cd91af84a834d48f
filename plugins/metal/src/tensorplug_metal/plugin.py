"""The entry point. Looks for macOS and PyObjC without importing Metal."""

from collections.abc import Sequence

import tensorplug
from tensorplug.device import Device
from tensorplug.errors import Refusal

api_version = (0, 1)


@tensorplug.hookimpl
def tensorplug_score() -> int | Refusal:
    """Works on macOS with PyObjC's bindings of Metal."""
    from tensorplug_metal import system

    reason = system.missing()
    return Refusal(reason) if reason else 1


@tensorplug.hookimpl
def tensorplug_devices() -> Sequence[Device]:
    """None so far: there is no device to make of a GPU yet."""
    return ()
