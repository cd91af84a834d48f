"""The entry point. It must not import the driver, because all programs import this module."""

from collections.abc import Sequence

import tensorplug
from tensorplug.device import Device, Refusal

api_version = (0, 1)


@tensorplug.hookimpl
def tensorplug_score() -> int | Refusal:
    """The score of this backend on this machine. Look for the driver here without loading it."""
    return 1


@tensorplug.hookimpl
def tensorplug_devices() -> Sequence[Device]:
    """The devices of this machine. The driver may be imported here."""
    from tensorplug_template import driver
    from tensorplug_template.device import TemplateDevice

    return [TemplateDevice(f"template:{i}", i) for i in range(driver.count())]
