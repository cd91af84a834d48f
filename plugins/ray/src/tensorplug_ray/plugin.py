"""The entry point. Imports Ray only when devices are configured and listed."""

import os
from collections.abc import Mapping, Sequence

import tensorplug
from tensorplug.device import Device, Refusal
from tensorplug_ray import config, trust

api_version = (0, 1)


@tensorplug.hookimpl
def tensorplug_score() -> int | Refusal:
    """Works where devices are configured."""
    if config.configured(os.environ) is None:
        return Refusal(
            f"no devices are configured: set {config.VARIABLE}, such as 'cpu?threads=2;opencl:0', "
            "or call tensorplug_ray.connect()"
        )
    return 1


@tensorplug.hookimpl
def tensorplug_devices() -> Sequence[Device]:
    """One device for each entry of the configuration."""
    found = config.configured(os.environ)
    if found is None:
        return []
    trust.prepare(found)
    from tensorplug_ray.device import devices_of

    return devices_of(found)


@tensorplug.hookimpl
def tensorplug_features() -> Mapping[str, str]:
    """The version of Ray, the address of the cluster and the devices."""
    from importlib.metadata import version

    found = config.configured(os.environ)
    if found is None:
        return {"ray": version("ray")}
    named = config.described(found.devices)
    return {"ray": version("ray"), "address": found.address, "devices": named}
