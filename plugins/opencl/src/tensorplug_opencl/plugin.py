"""The entry point. Looks for drivers without loading any."""

from collections.abc import Mapping, Sequence

import tensorplug
from tensorplug.device import Device, Refusal

api_version = (0, 1)


@tensorplug.hookimpl
def tensorplug_score() -> int | Refusal:
    """Works where a driver is installed."""
    from tensorplug_opencl import drivers

    reason = drivers.missing()
    return Refusal(reason) if reason else 1


@tensorplug.hookimpl
def tensorplug_devices() -> Sequence[Device]:
    """Every device of every platform, GPUs first."""
    from tensorplug_opencl import drivers

    found = drivers.devices()  # before PyOpenCL is imported: it reads variables that are set here
    from tensorplug_opencl.device import OpenCLDevice

    return [OpenCLDevice(f"opencl:{i}", device) for i, device in enumerate(found)]


@tensorplug.hookimpl
def tensorplug_features() -> Mapping[str, str]:
    """The version of PyOpenCL and the platforms."""
    from tensorplug_opencl import drivers

    return drivers.features()
