"""Device strings, `NAME[@DISTRIBUTION][:INDEX][?KEY=VALUE&...]`, and texts for names that miss."""

import difflib
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from tensorplug.errors import OptionError

GRAMMAR = "NAME[@DISTRIBUTION][:INDEX][?KEY=VALUE&...]"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
BEST = "best"
HARDWARE = ("pci", "uuid")
"""Names that pick a device by `hardware_id`: `pci:c1:00.0`."""
RESERVED = (BEST, "gpu", "igpu", "accel", "meta", *HARDWARE)
"""Names with a meaning of their own that no backend may take."""

HINTS: Mapping[str, str] = MappingProxyType(
    {
        "cpu": "pip install tensorplug-cpu",
        "native": "pip install tensorplug-native, then open 'cpu@tensorplug-native'",
        "opencl": "pip install tensorplug-opencl",
        "cuda": "pip install tensorplug-cuda",
        "metal": "pip install tensorplug-metal",
    }
)
"""How to get backends that are known to exist."""


def canonical(project: str) -> str:
    """The one spelling of a distribution's name: `Tensorplug_CPU` is `tensorplug-cpu`."""
    return re.sub(r"[-_.]+", "-", project).lower()


def is_backend_name(name: str) -> bool:
    """Whether a backend may have this name: it can stand in a device string and means no kind."""
    return NAME.fullmatch(name) is not None and name.lower() not in RESERVED


class DeviceSpec(NamedTuple):
    """A device string in its parts; `rest` is an index or the tail of a device's name."""

    name: str
    distribution: str
    rest: str
    options: Mapping[str, str]

    @property
    def number(self) -> int | None:
        """The index; 0 where the string has none, None where it has a device's name instead."""
        if not self.rest:
            return 0
        return int(self.rest) if re.fullmatch(r"[0-9]{1,9}", self.rest) else None


def parse_spec(text: str) -> DeviceSpec:
    """Take a device string apart. Raises OptionError."""
    place, question, query = text.strip().partition("?")
    front, colon, rest = place.partition(":")
    name, at, distribution = front.partition("@")
    if not NAME.fullmatch(name) or (at and not NAME.fullmatch(distribution)):
        raise OptionError(f"device string {text!r}: no name to look for; write {GRAMMAR}")
    if colon and not rest:
        raise OptionError(f"device string {text!r}: nothing follows the colon; write {GRAMMAR}")
    if at and name.lower() in RESERVED:
        raise OptionError(f"device string {text!r}: {name} is no backend that has distributions")
    options = _parse_options(text, query) if question else {}
    return DeviceSpec(name.lower(), canonical(distribution), rest.lower(), options)


def _parse_options(text: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in query.split("&"):
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise OptionError(f"device string {text!r}: {pair!r} is no option; write {GRAMMAR}")
        if key in options:
            raise OptionError(f"device string {text!r}: option {key!r} is given twice")
        options[key] = value
    return options


def old_spec(text: str) -> str:
    """Turn ggml's `name:params` into a device string: `cpu:threads=2` into `cpu?threads=2`."""
    name, _, params = text.partition(":")
    if not params:
        return name
    return f"{name}:{params}" if params.isdecimal() else f"{name}?{params}"


def hardware_id(text: str) -> str:
    """A PCI address or UUID as devices spell it: `c1:00.0` is `0000:c1:00.0`."""
    return f"0000:{text}" if text.count(":") == 1 else text


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest of `known` as a question, or an empty string."""
    close = difflib.get_close_matches(name.lower(), sorted(known), n=1, cutoff=0.7)
    return f"did you mean {close[0]!r}?" if close else ""


def how_to_get(name: str, known: Iterable[str]) -> str:
    """What to do about a name that no installed backend has."""
    installed = sorted(known)
    if name in HINTS:
        return HINTS[name]
    if hint := did_you_mean(name, {*installed, *RESERVED}):
        return hint
    if close := difflib.get_close_matches(name, HINTS, n=1, cutoff=0.7):
        return f"did you mean {close[0]!r}? {HINTS[close[0]]}"
    if not installed:
        return f"no backend is installed; {HINTS['cpu']}"
    return f"installed backends: {', '.join(installed)}"
