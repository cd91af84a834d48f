"""The entry point. Looks for macOS and PyObjC without importing Metal."""

from collections.abc import Mapping, Sequence

import tensorplug
from tensorplug.device import Device, Refusal

api_version = (0, 1)


@tensorplug.hookimpl
def tensorplug_score() -> int | Refusal:
    """Works on macOS with PyObjC's bindings of Metal."""
    from tensorplug_metal import system

    reason = system.missing()
    return Refusal(reason) if reason else 1


@tensorplug.hookimpl
def tensorplug_devices() -> Sequence[Device]:
    """Every GPU on which a kernel runs."""
    from tensorplug_metal.enumeration import devices

    return devices()


@tensorplug.hookimpl
def tensorplug_features() -> Mapping[str, str]:
    """Versions of macOS and of PyObjC, and what each GPU is."""
    from tensorplug_metal.enumeration import features

    return features()
