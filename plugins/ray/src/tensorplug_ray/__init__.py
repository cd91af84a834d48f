"""The ray backend of tensorplug: devices of other processes and machines, through Ray actors."""

from collections.abc import Iterable, Mapping
from typing import Any

import tensorplug
from tensorplug.device import Device
from tensorplug.errors import OptionError
from tensorplug.registry import replace_device
from tensorplug_ray import config
from tensorplug_ray.config import Config, DeviceEntry

__all__ = ["Config", "DeviceEntry", "connect", "restart"]


def connect(
    address: str = config.OWN,
    *,
    devices: Iterable[str | Mapping[str, Any] | DeviceEntry],
    insecure: bool = False,
    models: str = "",
    limit: float = config.LIMIT,
) -> tuple[Device, ...]:
    """Connect to a cluster and return its devices, which `tensorplug.open("ray:0")` finds too.

    Each of `devices` is a device string, or a table as in a configuration file: `open`, and `node`,
    `resources`, `labels` or `gpus`. An actor that does not answer within `limit` seconds counts as
    lost; 0 waits for ever. Devices of an earlier call are closed. Raises OptionError,
    BackendUnavailable, and LiveChildren while streams or memory of theirs are open.
    """
    chosen = Config(config.entries(devices, "connect"), address, insecure, models, limit)
    tensorplug.unload("ray")
    config.choose(chosen)
    tensorplug.load("ray")
    return tensorplug.devices_of("ray")


def restart(lost: Device) -> Device:
    """Start the actor of a device again, and return a new device of the same name and place.

    What the old one held is lost. `tensorplug.open` finds the new one from now on, and
    `Scheduler.take_back` gives it the work of the old one. Raises OptionError, DeviceError.
    """
    from tensorplug_ray.device import RayDevice  # noqa: PLC0415 - imports Ray

    if not isinstance(lost, RayDevice):
        raise OptionError(f"restart {lost!r}: is not a device of Ray")
    device = lost.restarted()
    replace_device(lost, device)
    return device
