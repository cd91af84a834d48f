"""Device strings of meta devices: `meta:cpu+opencl:0?split=rows&ratio=3,1`."""

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from tensorplug.device.device import Device
from tensorplug.errors import OptionError
from tensorplug.registry.spec import DeviceSpec

NAME = "meta"
BETWEEN = "+"
OPTIONS = ("split", "ratio")


class Joined(NamedTuple):
    """A parsed device string of a meta device: device strings of its parts, policy, ratio."""

    parts: tuple[str, ...]
    split: str
    ratio: tuple[float, ...] | None


def joined(spec: DeviceSpec) -> Joined | None:
    """Parse `spec`; None if it does not name a meta device with parts. Raises OptionError."""
    if spec.name != NAME or not spec.rest or spec.number is not None:
        return None
    parts = tuple(spec.rest.split(BETWEEN))
    if not all(parts):
        raise OptionError(
            f"device meta:{spec.rest}: a device is missing next to a +; write meta:cpu+opencl:0"
        )
    unknown = [option for option in spec.options if option not in OPTIONS]
    if unknown:
        raise OptionError(
            f"device meta:{spec.rest}: no option {unknown[0]!r}; it takes {' and '.join(OPTIONS)}, "
            "and its parts take none"
        )
    return Joined(
        parts,
        spec.options.get("split", "rows"),
        _ratio(spec),
    )


def join(devices: Sequence[Device], wanted: Joined) -> Device:
    """Make the meta device of `devices`. Raises OptionError."""
    # Imported lazily: `tensorplug.meta` imports the scheduler, and few programs use it.
    make = import_module("tensorplug.meta").device
    made: Device = make(devices, wanted.split, ratio=wanted.ratio)
    return made


def _ratio(spec: DeviceSpec) -> tuple[float, ...] | None:
    text = spec.options.get("ratio")
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise OptionError(
            f"device meta:{spec.rest}: ratio={text} is not a list of numbers such as 3,1"
        ) from None
