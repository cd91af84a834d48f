"""`Opening`: how a meta device opens the streams of one of its devices."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tensorplug.device.backend import (
    Backend,
    SupportsAbort,
    SupportsReference,
    SupportsThreads,
)
from tensorplug.device.device import Device


class Setting(NamedTuple):
    """An attribute of streams that may be set after they were opened."""

    ability: Any
    name: str


SETTINGS = (
    Setting(SupportsThreads, "threads"),
    Setting(SupportsAbort, "abort_callback"),
    Setting(SupportsReference, "use_reference"),
)


@dataclass(frozen=True, slots=True)
class Opening:
    """A device, the options of its streams and what is set on each."""

    device: Device
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, part: Device | Backend) -> "Opening":
        """Open streams of a device by its defaults, or as another stream is now."""
        if not isinstance(part, Backend):
            return cls(part)
        part.check_open()
        settings = {s.name: getattr(part, s.name) for s in SETTINGS if isinstance(part, s.ability)}
        options = dict(part.options)
        for option in (o for o in part.device.options if o.name not in settings):
            now = getattr(part, option.name, None)
            # Numbers and switches that a stream shows under their names may have been set since.
            if option.kind in (int, bool) and type(now) is option.kind:
                options[option.name] = now
        return cls(part.device, options, settings)

    def open(self) -> Backend:
        """Return a new stream. Raises OptionError, DeviceError, OutOfMemory."""
        stream = self.device.open(**self.options)
        try:
            for name, value in self.settings.items():
                # Threads of a pool start again when their number is set.
                if getattr(stream, name) != value:
                    setattr(stream, name, value)
        except BaseException:
            stream.close()
            raise
        return stream
