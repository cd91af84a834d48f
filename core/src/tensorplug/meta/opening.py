"""`Opening`: how a meta device opens the streams of one of its devices."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorplug.device.abilities import SETTABLE, SupportsAbort, SupportsReference, SupportsThreads
from tensorplug.device.backend import Backend
from tensorplug.device.device import Device

COPIED = (SupportsThreads, SupportsAbort, SupportsReference)
"""Abilities whose attributes new streams take over from a given stream."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A device, and the options and settings of the streams that are opened on it."""

    device: Device
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, part: Device | Backend) -> "Opening":
        """The defaults of a device, or the present options and settings of a stream."""
        if not isinstance(part, Backend):
            return cls(part)
        part.check_open()
        settings = {
            name: getattr(part, name)
            for name, ability in SETTABLE.items()
            if ability in COPIED and isinstance(part, ability)
        }
        options = dict(part.options)
        for option in (o for o in part.device.options if o.name not in settings):
            now = getattr(part, option.name, None)
            # An option may have been changed through a stream's attribute of the same name.
            if option.kind in (int, bool) and type(now) is option.kind:
                options[option.name] = now
        return cls(part.device, options, settings)

    def open(self) -> Backend:
        """Return a new stream. Raises OptionError, DeviceError, OutOfMemory."""
        stream = self.device.open(**self.options)
        try:
            for name, value in self.settings.items():
                # Setting an unchanged value would restart the threads of a pool.
                if getattr(stream, name) != value:
                    setattr(stream, name, value)
        except BaseException:
            stream.close()
            raise
        return stream
