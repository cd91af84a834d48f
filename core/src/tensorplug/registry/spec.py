"""Device strings, `NAME[@DISTRIBUTION][:INDEX][?KEY=VALUE&...]`, and hints for unknown names."""

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
"""Names that select a device by `hardware_id`: `pci:c1:00.0`."""
RESERVED = (BEST, "gpu", "igpu", "accel", "meta", *HARDWARE)
"""Names with a special meaning, which backends must not use."""

HINTS: Mapping[str, str] = MappingProxyType(
    {
        "cpu": "pip install 'tensorplug[cpu]'",
        "native": "pip install 'tensorplug[native]', then open 'cpu@tensorplug-native'",
        "opencl": "pip install 'tensorplug[opencl]'",
        "cuda": "pip install 'tensorplug[cuda13]', or [cuda12] for a driver before CUDA 13",
        "metal": "pip install 'tensorplug[metal]'",
        "ray": "pip install 'tensorplug[ray]', and set TENSORPLUG_RAY",
    }
)
"""How to install known backends."""


def canonical(project: str) -> str:
    """The canonical name of a distribution: `Tensorplug_CPU` becomes `tensorplug-cpu`."""
    return re.sub(r"[-_.]+", "-", project).lower()


def is_backend_name(name: str) -> bool:
    """True if a backend may have this name: it is valid in a device string and not reserved."""
    return NAME.fullmatch(name) is not None and name.lower() not in RESERVED


class DeviceSpec(NamedTuple):
    """A parsed device string. `rest`, the text after the colon, is an index or the end of a
    device's name."""

    name: str
    distribution: str
    rest: str
    options: Mapping[str, str]

    @property
    def number(self) -> int | None:
        """The index: 0 if the string has none, None if `rest` is not a number."""
        if not self.rest:
            return 0
        return int(self.rest) if re.fullmatch(r"[0-9]{1,9}", self.rest) else None


def parse_spec(text: str) -> DeviceSpec:
    """Parse a device string. Raises OptionError."""
    place, question, query = text.strip().partition("?")
    front, colon, rest = place.partition(":")
    name, at, distribution = front.partition("@")
    if not NAME.fullmatch(name) or (at and not NAME.fullmatch(distribution)):
        raise OptionError(f"device string {text!r}: no name to look for; write {GRAMMAR}")
    if colon and not rest:
        raise OptionError(f"device string {text!r}: nothing follows the colon; write {GRAMMAR}")
    if at and name.lower() in RESERVED:
        raise OptionError(f"device string {text!r}: {name} is not a backend with distributions")
    options = _parse_options(text, query) if question else {}
    return DeviceSpec(name.lower(), canonical(distribution), rest.lower(), options)


def _parse_options(text: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in query.split("&"):
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise OptionError(f"device string {text!r}: {pair!r} is not an option; write {GRAMMAR}")
        if key in options:
            raise OptionError(f"device string {text!r}: option {key!r} is given twice")
        options[key] = value
    return options


def old_spec(text: str) -> str:
    """Convert ggml's `name:params` to a device string: `cpu:threads=2` to `cpu?threads=2`."""
    name, _, params = text.partition(":")
    if not params:
        return name
    return f"{name}:{params}" if params.isdecimal() else f"{name}?{params}"


def hardware_id(text: str) -> str:
    """A PCI address or UUID as devices spell it: `c1:00.0` becomes `0000:c1:00.0`."""
    return f"0000:{text}" if text.count(":") == 1 else text


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` with the most similar of `known`; empty if none is similar."""
    close = difflib.get_close_matches(name.lower(), sorted(known), n=1, cutoff=0.7)
    return f"did you mean {close[0]!r}?" if close else ""


def how_to_get(name: str, known: Iterable[str]) -> str:
    """A hint for a name that no installed backend has."""
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
