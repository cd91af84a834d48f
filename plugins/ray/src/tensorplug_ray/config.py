"""Which devices of a cluster to use: `TENSORPLUG_RAY`, a file, or arguments of `connect`."""

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tensorplug.errors import OptionError

VARIABLE = "TENSORPLUG_RAY"
"""The environment variable: device strings separated by `;`, or the path of a `.toml` file."""
ADDRESS = "RAY_ADDRESS"
"""Ray's own environment variable with the address of a running cluster."""
OWN = "local"
"""The address that starts a cluster on this machine, which ends with the process."""

LIMIT = 600.0
"""Seconds after which an actor that does not answer counts as lost."""

_ENTRY = {"open": str, "node": str, "resources": dict, "labels": dict, "gpus": (int, float)}
_FILE = {"address": str, "insecure": bool, "models": str, "limit": (int, float), "devices": list}


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """One device: what its actor opens, and on which node.

    `node` is the host name or the address of a node. `resources` and `labels` are Ray's. `gpus` is
    the number of GPUs that Ray reserves for the actor.
    """

    open: str
    node: str = ""
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: float = 0

    def __post_init__(self) -> None:
        where = f"{VARIABLE}: device {self.open!r}"
        _check_number(where, "gpus", self.gpus)
        for name, number in self.resources.items():
            if name in ("CPU", "GPU", "memory"):
                raise OptionError(
                    f"{where}: resources has {name!r}, which Ray counts itself; give gpus, or a "
                    "resource of your own"
                )
            _check_number(where, f"resource {name!r}", number)
        for name, label in self.labels.items():
            if not isinstance(label, str):
                raise OptionError(f"{where}: label {name!r} is {label!r}; give a text")


@dataclass(frozen=True, slots=True)
class Config:
    """A cluster, and the devices to use there, `ray:0` first.

    `models` is the folder with model files on the nodes; empty: paths are those of this machine.
    An actor that does not answer within `limit` seconds counts as lost; 0 waits for ever.
    """

    devices: tuple[DeviceEntry, ...]
    address: str = OWN
    insecure: bool = False
    models: str = ""
    limit: float = LIMIT

    def __post_init__(self) -> None:
        _check_number(VARIABLE, "limit", self.limit)


def _check_number(where: str, name: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 <= value < math.inf):
        raise OptionError(f"{where}: {name} is {value!r}; give a number of at least 0")


def from_environment(environ: Mapping[str, str]) -> Config | None:
    """The configuration of the environment; None without one. Raises OptionError."""
    text = environ.get(VARIABLE, "").strip()
    if not text:
        return None
    if text.endswith(".toml"):
        found = from_file(Path(text))
    else:
        found = Config(entries(part.strip() for part in text.split(";") if part.strip()))
    if found.address == OWN and environ.get(ADDRESS):
        return replace(found, address=environ[ADDRESS])
    return found


def from_file(path: Path) -> Config:
    """Read a configuration. Raises OptionError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"{VARIABLE}={path}: cannot be read: {error}") from error
    where = f"{VARIABLE}={path}"
    _check(content, _FILE, where)
    given = content.pop("devices", [])
    return Config(entries(given, where), **content)


def entries(
    given: Iterable[str | Mapping[str, Any] | DeviceEntry], where: str = VARIABLE
) -> tuple[DeviceEntry, ...]:
    """The entries for device strings and tables. Raises OptionError."""
    found = tuple(_entry(each, where) for each in given)
    if not found:
        raise OptionError(f"{where}: names no devices; give some, such as 'cpu?threads=2;opencl:0'")
    return found


def _entry(given: str | Mapping[str, Any] | DeviceEntry, where: str) -> DeviceEntry:
    if isinstance(given, DeviceEntry):
        return given
    if isinstance(given, str):
        given = {"open": given}
    if not isinstance(given, Mapping):
        raise OptionError(f"{where}: a device is {given!r}, not a device string or a table")
    _check(given, _ENTRY, f"{where}: device {given.get('open', '')!r}")
    if not given.get("open"):
        raise OptionError(f"{where}: a device has no 'open'; it names what to open, such as 'cpu'")
    return DeviceEntry(**given)


def _check(given: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
    for name, value in given.items():
        if name not in known:
            raise OptionError(f"{where}: {name!r} is unknown; known are {', '.join(known)}")
        if not isinstance(value, known[name]):
            raise OptionError(f"{where}: {name} is {value!r}, of type {type(value).__name__}")


def described(devices: Sequence[DeviceEntry]) -> str:
    """The devices in one line."""
    return "; ".join(f"{d.open} on {d.node}" if d.node else d.open for d in devices)


class _Chosen:
    """What the program itself configured, before the environment."""

    config: Config | None = None


def choose(config: Config) -> None:
    """Use `config` from now on, in place of the environment."""
    _Chosen.config = config


def configured(environ: Mapping[str, str]) -> Config | None:
    """What the program configured, otherwise the environment; None without either."""
    return _Chosen.config or from_environment(environ)
