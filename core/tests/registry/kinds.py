"""Devices of every kind and plugins that offer them, for tests that install nothing."""

import types

import tensorplug as tp
from tensorplug.device import DeviceType, Option
from tensorplug_testing.null import NullDevice


class Kind(NullDevice):
    """A fake device of a kind, with an address and options."""

    options = (Option("threads", int, 4, "number of threads"),)

    def __init__(self, name, kind=DeviceType.GPU, *, address="", free=1 << 30, error=None):
        super().__init__(name, device_type=kind, memory=free)
        self.address = address
        self.error = error
        self.opened_with = None

    @property
    def hardware_id(self):
        return self.address

    def _open(self, options):
        self.opened_with = options
        if self.error is not None:
            raise self.error
        return super()._open(options)


def plugin_of(*devices, score=1, extra=None):
    module = types.SimpleNamespace(api_version=(0, 1), __name__="plugin")
    module.tensorplug_score = tp.hookimpl(lambda: score)
    module.tensorplug_devices = tp.hookimpl(lambda: list(devices))
    for name, function in (extra or {}).items():
        setattr(module, name, tp.hookimpl(function))
    return module


def names(devices):
    return [device.name for device in devices]
