"""The entry point. It imports no driver: it is read by programs that never use this backend."""

from collections.abc import Sequence

import tensorplug
from tensorplug.device import Device, Refusal

api_version = (0, 1)


@tensorplug.hookimpl
def tensorplug_score() -> int | Refusal:
    """How well this backend suits the machine; look for the driver here, without loading it."""
    return 1


@tensorplug.hookimpl
def tensorplug_devices() -> Sequence[Device]:
    """The devices of this machine; the driver may be imported now."""
    from tensorplug_template import driver
    from tensorplug_template.device import TemplateDevice

    return [TemplateDevice(f"template:{i}", i) for i in range(driver.count())]
