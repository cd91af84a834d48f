"""The ray backend of tensorplug: devices of other processes and machines, through Ray actors."""

from collections.abc import Iterable, Mapping
from typing import Any

import tensorplug
from tensorplug.device import Device
from tensorplug_ray import config
from tensorplug_ray.config import Config, DeviceEntry

__all__ = ["Config", "DeviceEntry", "connect"]


def connect(
    address: str = config.OWN,
    *,
    devices: Iterable[str | Mapping[str, Any] | DeviceEntry],
    insecure: bool = False,
    models: str = "",
) -> tuple[Device, ...]:
    """Connect to a cluster and return its devices, which `tensorplug.open("ray:0")` finds too.

    Each of `devices` is a device string, or a table as in a configuration file: `open`, and `node`,
    `resources`, `labels` or `gpus`. Devices of an earlier call are closed. Raises OptionError,
    BackendUnavailable, and LiveChildren while streams or memory of theirs are open.
    """
    chosen = Config(config.entries(devices, "connect"), address, insecure, models)
    tensorplug.unload("ray")
    config.choose(chosen)
    tensorplug.load("ray")
    return tensorplug.devices_of("ray")
