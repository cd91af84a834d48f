"""The entry point: what core asks before anything is used. Loads no library."""

from collections.abc import Mapping, Sequence

import tensorplug
from tensorplug.device import Device, Refusal

api_version = (0, 1)

SCORE = 10
"""Above tensorplug-cpu, which has 1."""


@tensorplug.hookimpl
def tensorplug_score() -> int | Refusal:
    """Works where the kernels were compiled."""
    from tensorplug_native.library import location

    return SCORE if location() is not None else Refusal("built without a compiler")


@tensorplug.hookimpl
def tensorplug_devices() -> Sequence[Device]:
    """One device: all cores of the process."""
    from tensorplug_native.device import NativeDevice

    return [NativeDevice("cpu:0")]


@tensorplug.hookimpl
def tensorplug_features() -> Mapping[str, str]:
    """The instruction-set levels that this processor runs, and the one that is used."""
    from tensorplug_native.library import AUTO, library

    loaded = library()
    return {"level": loaded.level(AUTO).name, "levels": " ".join(loaded.levels)}
