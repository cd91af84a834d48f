"""`Registry`: finds installed backends, lists their devices, opens devices by name."""

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tensorplug.device.backend import Backend
from tensorplug.device.device import Device, DeviceType, checked_kind
from tensorplug.errors import (
    BackendNotFound,
    BackendUnavailable,
    OptionError,
    StateError,
    TensorplugError,
)
from tensorplug.registry.candidate import Candidate, describe
from tensorplug.registry.catalog import Catalog, Item, call_safely
from tensorplug.registry.compat import FEATURES, features_of, shared_symbol
from tensorplug.registry.guard import Failure, attempt
from tensorplug.registry.hooks import Plugin
from tensorplug.registry.joined import Joined, join, joined
from tensorplug.registry.loading import Enlisted
from tensorplug.registry.report import Report
from tensorplug.registry.spec import (
    BEST,
    HARDWARE,
    DeviceSpec,
    hardware_id,
    how_to_get,
    old_spec,
    parse_spec,
)
from tensorplug.system.forks import in_child
from tensorplug.text import counted

logger = logging.getLogger("tensorplug.registry")

SELECTORS: Mapping[str, tuple[DeviceType, ...]] = {
    BEST: (DeviceType.GPU, DeviceType.IGPU, DeviceType.CPU),
    "gpu": (DeviceType.GPU, DeviceType.IGPU),
    "igpu": (DeviceType.IGPU,),
    "accel": (DeviceType.ACCEL,),
    "cpu": (DeviceType.CPU,),
    "meta": (DeviceType.META,),
}
"""The device types that a selector stands for, if no installed backend has that name."""


class Registry:
    """The backends of a process. Thread-safe; nothing is read or imported before the first use.

    Distributions are searched on `path`, by default `sys.path`. `environ` holds the environment
    variables, by default those of the process. Both are read at the first use and by `refresh()`.

    >>> registry = tp.Registry(environ={"TENSORPLUG_BACKENDS": "cpu"})
    >>> [candidate.name for candidate in registry.backends()]
    ['cpu']
    """

    def __init__(
        self, *, path: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._lock = threading.RLock()
        self._made = Catalog(path, os.environ if environ is None else environ)
        self._observers: list[Plugin] = []
        self._joined: dict[Joined, Device] = {}
        in_child(self)

    def _renew_after_fork(self) -> None:
        self._lock = threading.RLock()

    # --- what is installed -----------------------------------------------------------------

    def load_all(self) -> Report:
        """Import and score every allowed backend. Failures are in the report; none is raised.

        >>> report = tp.load_all()
        >>> "cpu" in {candidate.name for candidate in report.candidates}
        True
        """
        with self._lock:
            self._catalog.load_all()
            report = self._catalog.report()
            plugins = [item.plugin for item in self._catalog.items() if item.plugin is not None]
            for plugin in (*plugins, *self._observers):
                call_safely(plugin, "tensorplug_loaded", report=report)
            return report

    def load(self, name: str) -> Candidate:
        """Load one backend, `name` or `name@distribution`, also after `unload()`.

        A backend that failed or was not supported is asked again: a driver or another setting may
        be there now.
        Raises BackendNotFound, or BackendUnavailable with the cause chained.

        >>> tp.load("cpu@tensorplug-cpu").name
        'cpu'
        """
        spec = parse_spec(name)
        with self._lock:
            self._catalog.reload(spec.name)
            return self._usable(spec)[0].candidate

    def unload(self, name: str) -> None:
        """Close the devices of a backend and release its plugin; modules stay imported.

        After `unload("name@distribution")` the next distribution that offers `name` takes over.
        Raises LiveChildren while buffers or backends of the devices are open.

        >>> registry = tp.Registry()
        >>> registry.unload("cpu@tensorplug-cpu")
        >>> registry.load("cpu@tensorplug-cpu").name  # again
        'cpu'
        """
        spec = parse_spec(name)
        with self._lock:
            self._catalog.unload(self._items(spec))

    def load_all_from_path(self, folder: str | os.PathLike[str]) -> Report:
        """Load the backends of distributions in `folder` too, and append it to `sys.path`.

        A backend fails if its module would be imported from another folder. A folder without
        metadata of a backend gives a note in the report and a warning. Raises OptionError.

        >>> tp.Registry().load_all_from_path("missing-folder")
        Traceback (most recent call last):
        tensorplug.errors.OptionError: ...
        """
        with self._lock:
            self._catalog.add_folder(folder)
            return self.load_all()

    def refresh(self) -> Report:
        """Search again after an installation or removal, and load new backends.

        >>> "cpu" in {candidate.name for candidate in tp.Registry().refresh().candidates}
        True
        """
        with self._lock:
            self._catalog.rescan()
            return self.load_all()

    def scan(self) -> Report:
        """Return a report from metadata only, without importing plugins."""
        with self._lock:
            return self._catalog.report()

    def backends(self) -> tuple[Candidate, ...]:
        """The chosen candidate of each backend name, in order of preference.

        >>> "cpu" in {candidate.name for candidate in tp.backends()}
        True
        """
        with self._lock:
            self._catalog.load_all()
            chosen = (self._catalog.chosen(name) for name in self._catalog.names())
            return tuple(item.candidate for item in chosen if item is not None)

    def register(self, plugin: object, name: str) -> Candidate:
        """Add a plugin that is part of the program. Idempotent. Raises OptionError."""
        with self._lock:
            return self._catalog.register(name, plugin).candidate

    def register_device(self, device: Device) -> None:
        """Add a device that is part of the program. Idempotent. Raises OptionError."""
        with self._lock:
            self._catalog.register_device(device)

    def replace_device(self, lost: Device, device: Device) -> None:
        """List `device` in the place of one of the same name that was lost. Raises OptionError."""
        with self._lock:
            self._catalog.replace_device(lost, device)

    def observe(self, observer: object) -> None:
        """Call the `tensorplug_loaded` hook of `observer` with the report of every `load_all()`."""
        with self._lock:
            self._observers.append(Plugin("observer", observer))

    # --- devices ---------------------------------------------------------------------------

    def devices(self, *kinds: DeviceType) -> tuple[Device, ...]:
        """Every device, or every device of the types `kinds`, in order of preference.

        The order is: TENSORPLUG_BACKENDS, then type (GPU, IGPU, ACCEL, CPU), then free memory at
        the first enumeration (not for CPU devices), then name. Raises OptionError.

        >>> [device.name for device in tp.devices(tp.DeviceType.CPU)][:1]
        ['cpu:0']
        """
        wanted = [checked_kind(kind, "devices") for kind in kinds]
        with self._lock:
            found = [entry.device for entry in self._enlisted()]
        return tuple(device for device in found if not wanted or device.type in wanted)

    def devices_of(self, name: str) -> tuple[Device, ...]:
        """The devices of one backend, `name` or `name@distribution`, in the plugin's order.

        Raises BackendNotFound, BackendUnavailable.

        >>> [device.name for device in tp.devices_of("cpu")]
        ['cpu:0']
        """
        with self._lock:
            return tuple(entry.device for entry in self._entries(parse_spec(name)))

    def hardware(self, *kinds: DeviceType) -> tuple[Device, ...]:
        """Like `devices`, but hardware that two backends offer appears once: the better one."""
        wanted = [checked_kind(kind, "hardware") for kind in kinds]
        with self._lock:
            seen: dict[str, Enlisted] = {}
            for entry in self._enlisted():
                seen.setdefault(entry.hardware_id or entry.device.name.lower(), entry)
            return tuple(e.device for e in seen.values() if not wanted or e.device.type in wanted)

    def device(self, spec: str) -> Device:
        """The device that `spec` names. Raises BackendNotFound, BackendUnavailable, OptionError.

        `meta:cpu+opencl:0?split=rows&ratio=3,1` is one device made of several, `split` being one of
        `meta.POLICIES`, by default `rows`.

        >>> tp.device("cpu:0").name
        'cpu:0'
        """
        parsed = parse_spec(spec)
        if parsed.options and joined(parsed) is None:
            raise OptionError(f"device {spec!r}: options belong to open(), not to a device")
        return self._find(parsed)

    def open(self, spec: str = BEST, **options: Any) -> Backend:
        """Return a new stream of the device that `spec` means: `cpu`, `cuda:1`, `cpu?threads=2`.

        `options` override options in the string. Raises BackendNotFound, BackendUnavailable,
        OptionError.

        >>> with tp.open("cpu?threads=1") as stream:
        ...     stream.options["threads"]
        1
        """
        parsed = parse_spec(spec)
        if joined(parsed) is not None:
            return self._find(parsed).open(**options)
        given = {**parsed.options, **options}
        if parsed.name == BEST and not parsed.rest:
            return self.open_best(**given)
        return self._find(parsed).open(**given)

    def open_by_type(self, kind: DeviceType, **options: Any) -> Backend:
        """Return a new stream of the preferred device of type `kind`.

        Raises BackendNotFound, OptionError.
        """
        checked_kind(kind, "open_by_type")
        found = self.devices(kind)
        if not found:
            raise self._none_of(kind.value)
        return found[0].open(**options)

    def open_best(self, **options: Any) -> Backend:
        """Return a new stream of the best GPU, else IGPU, else CPU that opens."""
        errors: list[TensorplugError] = []
        for device in self.hardware(*SELECTORS[BEST]):
            try:
                return device.open(**options)
            except OptionError:
                raise
            except TensorplugError as error:
                logger.warning("%s does not open, the next is tried: %s", device.name, error)
                errors.append(error)
        if errors:
            raise BackendUnavailable(f"{BEST}: no device opens: {errors[0]}") from errors[0]
        raise self._none_of(BEST)

    def init_backend_from_str(self, text: str) -> Backend:
        """Open the old form `name:params`, such as `cpu`, `cuda:1` or `cpu:threads=2`."""
        return self.open(old_spec(text))

    # --- extras ----------------------------------------------------------------------------

    def features(self, name: str) -> dict[str, str]:
        """The build options and detected features that a backend reports.

        >>> sorted(tp.features("cpu@tensorplug-cpu"))
        ['blas', 'numpy', 'simd']
        """
        with self._lock:
            item = self._usable(parse_spec(name))[0]
            found = _ask(item, "tensorplug_features") or {}
            return {str(key): str(value) for key, value in found.items()}

    def get_proc_address(self, name: str, symbol: str) -> Any:
        """The function or object that a backend calls `symbol`, or None.

        ggml's common function names work for every backend that has the ability, with ggml's
        arguments. A name of ggml's that is replaced by another API gives None, and a warning in the
        log says what to call.
        """
        with self._lock:
            item = self._usable(parse_spec(name))[0]
            found = _ask(item, "tensorplug_extension", name=symbol)
            if found is not None:
                return found
            if symbol == FEATURES:
                return features_of(item.name, partial(self.features, item.candidate.spec))
            return shared_symbol(symbol, [e.device for e in self._catalog.enumerate(item)])

    # --- how -------------------------------------------------------------------------------

    @property
    def _catalog(self) -> Catalog:
        self._made.scan()
        return self._made

    def _items(self, spec: DeviceSpec) -> list[Item]:
        """The candidates that `spec` matches. Raises BackendNotFound."""
        items = self._catalog.items(spec.name)
        if spec.distribution:
            items = [s for s in items if s.candidate.project == spec.distribution]
        if items:
            return items
        offered = ", ".join(s.candidate.spec for s in self._catalog.items(spec.name))
        if offered:
            raise BackendNotFound(
                f"{spec.name}@{spec.distribution}: this distribution offers no {spec.name}; "
                f"installed: {offered}"
            )
        hint = how_to_get(spec.name, self._catalog.names())
        raise BackendNotFound(f"{spec.name}: no installed backend has this name; {hint}")

    def _usable(self, spec: DeviceSpec) -> list[Item]:
        """The usable candidates that `spec` matches, the best first. Raises BackendUnavailable."""
        self._items(spec)
        self._catalog.load(spec.name)
        items = self._items(spec)
        usable = [item for item in items if item.usable]
        if not usable:
            raise _unavailable(spec, [item.candidate for item in items])
        return usable

    def _entries(self, spec: DeviceSpec) -> list[Enlisted]:
        """The devices of a backend. Raises BackendNotFound, BackendUnavailable."""
        while True:
            # A candidate that gives no devices is refused; the next iteration tries the next one.
            item = self._usable(spec)[0]
            if item.busy:
                raise StateError(
                    f"{spec.name}: its plugin asks for itself while it is being loaded"
                )
            if entries := self._catalog.enumerate(item):
                return entries

    def _enlisted(self) -> list[Enlisted]:
        """All devices in order of preference."""
        catalog = self._catalog
        ranked = []
        for name in catalog.names():
            entries = catalog.devices(name)
            chosen = catalog.chosen(name)
            rank = chosen.candidate.rank if chosen is not None else 0
            ranked += [(rank, entry.order, entry) for entry in entries]
        return [entry for _, _, entry in sorted(ranked, key=lambda item: item[:2])]

    def _find(self, spec: DeviceSpec) -> Device:
        with self._lock:
            several = joined(spec)
            if several is not None:
                return self._join(several)
            if spec.name in self._catalog.names():
                return _pick([e.device for e in self._entries(spec)], spec)
            if spec.name in HARDWARE:
                wanted = hardware_id(spec.rest)
                entry = next((e for e in self._enlisted() if e.hardware_id == wanted), None)
                if entry is None:
                    raise BackendNotFound(
                        f"{spec.name}:{spec.rest}: no device has this address; see tensorplug info"
                    )
                return entry.device
            if spec.name in SELECTORS and not spec.distribution:
                found = self.hardware(*SELECTORS[spec.name])
                if not found:
                    raise self._none_of(spec.name)
                return _pick(found, spec)
            self._items(spec)
            raise AssertionError("names without candidates raise above")

    def _join(self, wanted: Joined) -> Device:
        parts = [self._find(parse_spec(part)) for part in wanted.parts]
        made = self._joined.get(wanted)
        if made is None or made.closed or getattr(made, "devices", ()) != tuple(parts):
            made = self._joined[wanted] = join(parts, wanted)
        return made

    def _none_of(self, what: str) -> BackendNotFound:
        with self._lock:
            devices = ", ".join(entry.device.name for entry in self._enlisted())
            report = self._catalog.report()
        refused = [f"{c.name} ({c.state.value})" for c in report.candidates if c.state.refused]
        more = f"; tensorplug info tells about {', '.join(refused)}" if refused else ""
        if devices:
            return BackendNotFound(f"{what}: no device of this kind; devices: {devices}{more}")
        return BackendNotFound(f"{what}: there is no device; {report.advice}{more}")


def _ask(item: Item, hook: str, **arguments: Any) -> Any:
    """Call a hook: its result, or None without the hook. Raises BackendUnavailable."""
    plugin = item.plugin
    answer = attempt(lambda: plugin.call(hook, **arguments)) if plugin is not None else None
    if isinstance(answer, Failure):
        raise BackendUnavailable(
            f"{item.name}: {hook} raised {describe(answer.error)}"
        ) from answer.error
    return answer


def _pick(devices: Sequence[Device], spec: DeviceSpec) -> Device:
    full = f"{spec.name}:{spec.rest}"
    for device in devices:
        if device.name.lower() == full:
            return device
    if spec.number is not None and spec.number < len(devices):
        return devices[spec.number]
    names = ", ".join(device.name for device in devices)
    count = counted(len(devices), "device")
    raise BackendNotFound(f"{full}: {spec.name} has {count}: {names}")


def _unavailable(spec: DeviceSpec, candidates: Sequence[Candidate]) -> BackendUnavailable:
    broken = sorted(candidates, key=lambda c: not c.state.broken)
    told = "; ".join(str(candidate) for candidate in broken)
    error = BackendUnavailable(f"{spec.name}: {told}")
    error.__cause__ = next((c.error for c in broken if c.error is not None), None)
    return error


_default = Registry()
load_all = _default.load_all
load = _default.load
unload = _default.unload
load_all_from_path = _default.load_all_from_path
refresh = _default.refresh
backends = _default.backends
register = _default.register
register_device = _default.register_device
replace_device = _default.replace_device
observe = _default.observe
devices = _default.devices
devices_of = _default.devices_of
hardware = _default.hardware
device = _default.device
open = _default.open  # noqa: A001 - tensorplug.open reads best
open_by_type = _default.open_by_type
open_best = _default.open_best
init_backend_from_str = _default.init_backend_from_str
features = _default.features
get_proc_address = _default.get_proc_address
