"""Loading of candidates: import, checks, score, enumeration of devices."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeGuard, TypeVar

from tensorplug.device.device import Device, DeviceType
from tensorplug.errors import Refusal
from tensorplug.registry.candidate import Candidate, State, describe, show
from tensorplug.registry.guard import Failure, attempt
from tensorplug.registry.hooks import API_VERSION, Plugin
from tensorplug.text import one_line

T = TypeVar("T")
_KINDS = list(DeviceType)


class Enlisted(NamedTuple):
    """A device with its sort key: type, free memory (0 for CPU devices), name."""

    device: Device
    order: tuple[int, int, str]
    hardware_id: str


def enlist(device: Device) -> Enlisted:
    """Ask a device for its type, memory and hardware id."""
    # All CPU devices share the host's memory, so its free bytes must not decide between them.
    free = 0 if device.type is DeviceType.CPU else device.memory().free
    order = (_KINDS.index(device.type), -free, device.name.lower())
    return Enlisted(device, order, device.hardware_id.lower())


def load_plugin(
    found: Candidate, environ: Mapping[str, str], given: object = None
) -> tuple[Candidate, Plugin | None]:
    """Import a plugin, or take the `given` one, check it, and ask for its score.

    Returns the candidate in its new state, and the plugin; None if a check failed.
    """
    started = perf_counter()
    plugin = None
    try:
        plugin, score = _checked(found, lambda: _examine(found, environ, given))
        found = replace(found, state=State.AVAILABLE, score=score)
    except _Stop as stop:
        found = found.refuse(stop.state, stop.reason, stop.error)
    return _after(found, started), plugin


def _examine(found: Candidate, environ: Mapping[str, str], given: object) -> tuple[Plugin, int]:
    """Return the plugin and its score. Raises _Stop if a check fails."""
    wrapped = _import(found) if given is None else given
    _check_version(found, wrapped)
    plugin = _check_hooks(found, wrapped)
    _configure(found, plugin, environ)
    return plugin, _score(found, plugin)


def enumerate_devices(found: Candidate, plugin: Plugin) -> tuple[Candidate, list[Enlisted]]:
    """Ask a plugin for its devices: the candidate becomes READY, or is refused with the reason."""
    started = perf_counter()
    devices: list[Enlisted] = []
    try:
        devices = _checked(found, lambda: _enumerate(found, plugin))
        found = replace(found, state=State.READY)
    except _Stop as stop:
        found = found.refuse(stop.state, stop.reason, stop.error)
    return _after(found, started), devices


def _enumerate(found: Candidate, plugin: Plugin) -> list[Enlisted]:
    """Return the devices of a plugin, at least one. Raises _Stop."""
    given = _ask(found, "tensorplug_devices", lambda: plugin.call("tensorplug_devices"))
    _check_devices(found, given)
    devices = _ask(found, "a device", lambda: [enlist(device) for device in given or ()])
    if not devices:
        raise _Stop(State.UNSUPPORTED, "it finds no device on this machine")
    return devices


class _Stop(Exception):
    """A candidate failed a check."""

    def __init__(self, state: State, reason: str, error: BaseException | None = None) -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason
        self.error = error


def _failed(found: Candidate, what: str, error: BaseException | None = None) -> _Stop:
    remedy = f"upgrade or uninstall {found.project}, or set TENSORPLUG_DISABLE={found.name}"
    return _Stop(State.FAILED, f"{what}; {remedy}", error)


def _after(found: Candidate, started: float) -> Candidate:
    return replace(found, probe_ms=found.probe_ms + (perf_counter() - started) * 1e3)


def _ask(found: Candidate, what: str, question: Callable[[], T]) -> T:
    answer = attempt(question)
    if isinstance(answer, Failure):
        raise _failed(found, f"{what} raised {describe(answer.error)}", answer.error)
    return answer


def _checked(found: Candidate, checks: Callable[[], T]) -> T:
    """Return the result of `checks`. Raises _Stop, also for any exception of a plugin's objects."""
    answer = attempt(checks)
    if not isinstance(answer, Failure):
        return answer
    if isinstance(answer.error, _Stop):
        raise answer.error
    raise _failed(found, f"checking it raised {describe(answer.error)}", answer.error)


# --- the checks, in their order ----------------------------------------------------------------


def _import(found: Candidate) -> object:
    module, _, attributes = found.value.partition("[")[0].partition(":")
    module = module.strip()
    if found.folder and (elsewhere := _found_elsewhere(module, found.folder)):
        raise _Stop(
            State.FAILED,
            f"shadowed: its module {module} comes from {elsewhere} and not from {found.folder}; "
            "remove one of the two, or load the folder in a process of its own",
        )
    answer = attempt(lambda: importlib.import_module(module))
    if isinstance(answer, Failure):
        raise _import_failed(found, module, answer.error)
    if not attributes:
        return answer
    return _ask(found, found.value, lambda: attrgetter(attributes.strip())(answer))


def _check_version(found: Candidate, wrapped: Any) -> None:
    theirs = _ask(found, "api_version", lambda: getattr(wrapped, "api_version", None))
    if not _is_version(theirs):
        raise _failed(
            found,
            f"api_version = {show(theirs)} is not a (major, minor) pair such as {API_VERSION}",
        )
    if theirs[0] == API_VERSION[0] and theirs[1] <= API_VERSION[1]:
        return
    wanted, ours = (".".join(map(str, v)) for v in (theirs, API_VERSION))
    older = "tensorplug" if theirs > API_VERSION else found.project
    raise _Stop(
        State.INCOMPATIBLE,
        f"it speaks plugin interface {wanted} and this tensorplug speaks {ours}; "
        f"pip install --upgrade {older}",
    )


def _check_hooks(found: Candidate, wrapped: object) -> Plugin:
    if inspect.isclass(wrapped):
        raise _failed(found, f"{found.value} is a class; it must be a module or an object")
    plugin = _ask(found, "checking its hooks", lambda: Plugin(found.name, wrapped))
    if unknown := plugin.unknown_hook:
        raise _failed(found, f"it has an unknown hook {unknown[0]}; use {unknown[1]}")
    if "tensorplug_devices" not in plugin.hooks:
        raise _failed(found, f"{found.value} has no tensorplug_devices marked with hookimpl")
    return plugin


def _configure(found: Candidate, plugin: Plugin, environ: Mapping[str, str]) -> None:
    arguments = {"name": found.name, "environ": environ}
    _ask(found, "tensorplug_configure", lambda: plugin.call("tensorplug_configure", **arguments))


def _score(found: Candidate, plugin: Plugin) -> int:
    score = _ask(found, "tensorplug_score", lambda: plugin.call("tensorplug_score"))
    if isinstance(score, Refusal):
        raise _Stop(State.UNSUPPORTED, one_line(str(score.reason)))
    if score is None:
        return 1
    if not isinstance(score, int) or isinstance(score, bool) or score < 0:
        raise _failed(found, f"tensorplug_score gave {show(score)}, not an integer of 0 or more")
    if score == 0:
        raise _Stop(State.UNSUPPORTED, "it gives itself the score 0: it cannot run on this machine")
    return int.__int__(score)  # a plain int: operators of a subclass may do anything


def _check_devices(found: Candidate, given: Any) -> None:
    if given is None:
        return
    if not isinstance(given, Sequence):
        raise _failed(found, f"tensorplug_devices gave {show(given)}, not a sequence of devices")
    names: set[str] = set()
    for device in given:
        if not isinstance(device, Device):
            raise _failed(found, f"tensorplug_devices gave {show(device)}, which is not a Device")
        name = device.name.lower()
        if not name.startswith(f"{found.name.lower()}:") or name in names:
            raise _failed(
                found,
                f"tensorplug_devices gave a device called {device.name!r}; names are "
                f"{found.name}:0, {found.name}:1, ..., each once",
            )
        if device.closed:
            raise _failed(
                found, f"tensorplug_devices gave {show(device)}; it must make new devices"
            )
        names.add(name)


# --- why an import failed ----------------------------------------------------------------------


def _import_failed(found: Candidate, module: str, error: BaseException) -> _Stop:
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return _failed(found, f"importing {module} raised {describe(error)}", error)
    missing = error.name
    if module == missing or module.startswith(f"{missing}."):
        reason = (
            f"its metadata is there but its module {missing} is not; "
            f"pip uninstall {found.project}, or install it again"
        )
    elif missing.partition(".")[0] == module.partition(".")[0]:
        reason = (
            f"its own module {missing} is missing; pip install --force-reinstall {found.project}"
        )
    else:
        reason = (
            f"it needs the module {missing}, which is not installed; install what brings it, "
            f"or pip install --force-reinstall {found.project}"
        )
    return _Stop(State.FAILED, reason, error)


def _found_elsewhere(module: str, folder: str) -> str:
    """The path from which the package of `module` is imported; empty if it lies in `folder`."""
    package = module.partition(".")[0]
    loaded = sys.modules.get(package)
    spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(package)
    if spec is None:
        return ""
    places = list(spec.submodule_search_locations or ()) or [spec.origin or "built-in modules"]
    inside = any(Path(place).resolve().is_relative_to(folder) for place in places)
    return "" if inside else places[0]


def _is_version(value: Any) -> TypeGuard[tuple[int, int]]:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(part, int) and not isinstance(part, bool) for part in value)
    )
