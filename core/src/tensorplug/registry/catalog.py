"""`Catalog`: the candidates of one registry with their plugins and devices."""

import importlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorplug.device.device import Device
from tensorplug.errors import LiveChildren, OptionError
from tensorplug.registry.candidate import Candidate, State, describe, settled
from tensorplug.registry.discovery import Offer, discover, discover_in
from tensorplug.registry.guard import Failure, attempt
from tensorplug.registry.hooks import Plugin
from tensorplug.registry.loading import Enlisted, enlist, enumerate_devices, load_plugin
from tensorplug.registry.report import Report
from tensorplug.registry.spec import is_backend_name
from tensorplug.registry.variables import Variables

logger = logging.getLogger("tensorplug.registry")

STATIC = "this-program"
"""The distribution name of plugins and devices that the program registers itself."""


@dataclass(slots=True, eq=False)
class Item:
    """A candidate, and its plugin and devices once they are loaded."""

    candidate: Candidate
    plugin: Plugin | None = None
    devices: list[Enlisted] | None = None
    given: object = None
    """The plugin object that the program registered, which is not imported."""
    unloaded: bool = False
    """True after `unload()`."""
    busy: bool = False
    """True while the plugin's code runs: it may ask for other backends but not for its own."""

    @property
    def usable(self) -> bool:
        """True if the candidate can be the chosen one for its name."""
        return self.candidate.state in (State.AVAILABLE, State.READY, State.SUPERSEDED)

    @property
    def name(self) -> str:
        """The name of the backend in lower case, for look-ups."""
        return self.candidate.name.lower()


class Catalog:
    """The candidates that are installed, their states, and which one is chosen for each name.

    Not thread-safe: the owner holds a lock around every call.
    """

    def __init__(self, path: Sequence[str] | None, environ: Mapping[str, str]) -> None:
        self._path = path
        self._environ = environ
        self._folders: list[str] = []
        self._items: list[Item] = []
        self._damaged: list[Candidate] = []
        self._notes: list[str] = []
        self._op_modules: list[Offer] = []
        self._variables = Variables()
        self._scanned = False

    # --- finding ---------------------------------------------------------------------------

    def scan(self) -> None:
        """Read the metadata of distributions on the path, once; imports nothing."""
        if not self._scanned:
            self._scanned = True
            self.rescan()

    def rescan(self) -> None:
        """Read the metadata again: add new candidates, drop removed ones, keep loaded plugins."""
        importlib.invalidate_caches()
        self._scanned = True
        self._variables = Variables.read(self._environ)
        self._op_modules = []
        path = sys.path if self._path is None else self._path
        found = discover([p for p in path if p not in self._folders], self._op_modules)
        for folder in self._folders:
            found += discover_in(folder, self._op_modules)
        before, self._items, self._damaged = self._items, [], []
        self._admit(found, before)
        for item in before:
            if item.candidate.distribution == STATIC:
                self._items.append(item)
            elif item not in self._items:
                self._drop(item)
        self._settle_all()

    def add_folder(self, place: str | os.PathLike[str]) -> None:
        """Add a folder to look for distributions in, and append it to `sys.path`.

        Raises OptionError if `place` is not a folder.
        """
        self.scan()
        if not Path(place).is_dir():
            raise OptionError(f"load_all_from_path: {str(place)!r} is not a folder")
        folder = str(Path(place).resolve())
        if folder in self._folders:
            return
        self._folders.append(folder)
        if folder not in sys.path:
            sys.path.append(folder)
        importlib.invalidate_caches()
        found = discover_in(folder, self._op_modules)
        if not found:
            self._note(
                f"load_all_from_path: no distribution in {folder} offers a backend; plugins are "
                "found by their metadata, not by the names of files: pip install --target "
                f"{folder} DISTRIBUTION puts both there",
                logging.WARNING,
            )
        self._admit(found, [])

    def _admit(self, found: Sequence[Candidate], before: Sequence[Item]) -> None:
        old = {(s.name, s.candidate.project, s.candidate.folder): s for s in before}
        for fresh in found:
            if not fresh.name:
                self._damaged.append(fresh)
                tell(fresh)
                continue
            if not fresh.state.refused:
                fresh = self._variables.allow(fresh)
            tell(fresh)
            kept = old.get((fresh.name.lower(), fresh.project, fresh.folder))
            if kept is None or fresh.state.refused or not (kept.plugin or kept.unloaded):
                self._items.append(Item(fresh))
                continue
            self._items.append(kept)
            if kept.candidate.distribution != fresh.distribution:
                self._note(
                    f"{fresh.name}: {fresh.distribution} was installed over "
                    f"{kept.candidate.distribution}, which is loaded; start the program again"
                )
            kept.candidate = replace(kept.candidate, rank=fresh.rank)

    # --- loading ---------------------------------------------------------------------------

    def load(self, name: str) -> None:
        """Import and score the candidates called `name` that are still in the state FOUND."""
        self.scan()
        for item in self.items(name):
            if item.candidate.state is State.FOUND and not item.busy:
                self._examine(item)
        self._settle(name)

    def load_all(self) -> None:
        """Import and score every candidate that is still in the state FOUND, and ops modules."""
        for name in self.names():
            self.load(name)
        self._load_ops()

    def _load_ops(self) -> None:
        """Import, once, the modules in which distributions register their own ops."""
        while self._op_modules:
            found = self._op_modules.pop(0)
            result = attempt(found.entry.load)
            if isinstance(result, Failure):
                module, why = found.entry.value, describe(result.error)
                self._note(f"{found.distribution}: its ops, {module}, are missing: {why}")

    def reload(self, name: str) -> None:
        """Like `load`, and load again what the program unloaded, what failed and what refused."""
        self.scan()
        for item in self.items(name):
            if item.unloaded or item.candidate.state in (State.UNSUPPORTED, State.FAILED):
                item.unloaded = False
                item.candidate = replace(item.candidate, state=State.FOUND, reason="")
        self.load(name)

    def _examine(self, item: Item) -> None:
        item.busy = True
        try:
            item.candidate, item.plugin = load_plugin(item.candidate, self._environ, item.given)
        finally:
            item.busy = False
        tell(item.candidate)

    def enumerate(self, item: Item) -> list[Enlisted]:
        """Return the devices of one candidate, asking its plugin once.

        If that fails, the list is empty and the next candidate of the name takes over.
        """
        if item.devices is not None or item.plugin is None or item.busy:
            return item.devices or []
        stood_for_name = self.chosen(item.name) is item
        item.busy = True
        try:
            item.candidate, devices = enumerate_devices(item.candidate, item.plugin)
        finally:
            item.busy = False
        if devices:
            item.devices = devices
            self._settle(item.name)
            for entry in devices:
                entry.device.candidate = item.candidate
            return devices
        self._drop(item)
        tell(item.candidate)
        self._settle(item.name)
        heir = self.chosen(item.name)
        if heir is not None and stood_for_name:
            self._note(
                f"{item.name}: {heir.candidate.distribution} took over from "
                f"{item.candidate.distribution}, which is {item.candidate.state.value}"
            )
        return []

    def devices(self, name: str) -> list[Enlisted]:
        """The devices of the best candidate called `name` that has any; empty if none has."""
        self.load(name)
        while (item := self.chosen(name)) is not None and not item.busy:
            if devices := self.enumerate(item):
                return devices
        return []

    def _settle(self, name: str) -> None:
        """Choose the best candidate called `name`; other usable ones become SUPERSEDED."""
        usable = [item for item in self.items(name) if item.usable]
        for item in usable:
            state = State.AVAILABLE if item.devices is None else State.READY
            item.candidate = replace(item.candidate, state=state, reason="")
        for item, candidate in zip(usable, settled(i.candidate for i in usable), strict=True):
            item.candidate = candidate

    def _settle_all(self) -> None:
        for name in self.names():
            self._settle(name)

    # --- looking ---------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The names of all backends that were found, in order of preference."""
        items = sorted(self._items, key=lambda item: (item.candidate.rank, item.name))
        return list(dict.fromkeys(item.name for item in items))

    def items(self, name: str | None = None) -> list[Item]:
        """The items of one backend name, by default of all names; the best first."""
        if name is None:
            return [item for each in self.names() for item in self.items(each)]
        return sorted(
            (s for s in self._items if s.name == name),
            key=lambda item: item.candidate.order,
        )

    def chosen(self, name: str) -> Item | None:
        """The best usable item called `name`, or None."""
        return next((item for item in self.items(name) if item.usable), None)

    def report(self) -> Report:
        """Return a report of the present states."""
        candidates = [item.candidate for item in self.items()]
        complaints = tuple(self._variables.complaints(candidates))
        everything = (*candidates, *self._damaged)
        return Report(everything, self._variables.seen, complaints, tuple(self._notes))

    # --- adding and dropping ---------------------------------------------------------------

    def register(self, name: str, given: object) -> Item:
        """Add a plugin object that is part of the program. Idempotent. Raises OptionError."""
        self.scan()
        _check_name(name)
        for item in self.items(name.lower()):
            if item.given is given:
                self.reload(item.name)
                return item
            if item.given is not None:
                raise OptionError(f"register {name}: the program has registered another {name}")
        item = Item(Candidate(name=name, distribution=STATIC, value=repr(given)), given=given)
        self._items.append(item)
        self._examine(item)
        self._settle(item.name)
        return item

    def register_device(self, device: Device) -> None:
        """Add a device that is part of the program to the devices of its backend. Idempotent.

        The backend is the device's name up to the colon. Raises OptionError if the name is taken.
        """
        name = device.name.partition(":")[0]
        _check_name(name)
        known = self.devices(name.lower())
        if any(entry.device is device for entry in known):
            return
        if any(entry.device.name.lower() == device.name.lower() for entry in known):
            raise OptionError(f"register {device!r}: there is another {device.name}; rename it")
        device.candidate = Candidate(name=name, distribution=STATIC, state=State.READY, score=1)
        if known:
            known.append(enlist(device))
            return
        self._items.append(Item(device.candidate, devices=[enlist(device)]))

    def replace_device(self, lost: Device, device: Device) -> None:
        """List `device` in the place of one of the same name that was lost. Raises OptionError."""
        for item in self._items:
            for i, entry in enumerate(item.devices or ()):
                if entry.device is lost and item.devices:
                    device.candidate = item.candidate
                    item.devices[i] = enlist(device)
                    return
        raise OptionError(f"replace {lost!r}: is not listed")

    def unload(self, items: Sequence[Item]) -> None:
        """Close the devices of `items` and release their plugins.

        Raises LiveChildren while buffers or backends of the devices are open.
        """
        devices = [entry.device for item in items for entry in item.devices or []]
        alive = [child for device in devices for child in device.children]
        if alive:
            names = ", ".join(repr(child) for child in alive[:5])
            what = "1 object is" if len(alive) == 1 else f"{len(alive)} objects are"
            raise LiveChildren(
                f"unload {items[0].candidate.name}: {what} open on its devices: {names}; close "
                "what was made from them first"
            )
        for item in items:
            if item.candidate.state.refused:
                continue
            loadable = item.given is not None or item.candidate.value
            self._drop(item)
            item.unloaded = True
            name = item.candidate.name
            item.candidate = item.candidate.refuse(
                State.DISABLED, f"the program unloaded it; load({name!r}) brings it back"
            )
            if not loadable:
                self._items.remove(item)
            self._settle(item.name)

    def _drop(self, item: Item) -> None:
        devices, item.devices = item.devices or [], None
        plugin, item.plugin = item.plugin, None
        for entry in devices:
            if entry.device.children:
                continue  # the device is in use: its user closes it
            result = attempt(entry.device.close)
            if isinstance(result, Failure):
                logger.warning("%r: close raised", entry.device, exc_info=result.error)
        if plugin is not None:
            call_safely(plugin, "tensorplug_unload")

    def _note(self, note: str, level: int = logging.INFO) -> None:
        if note not in self._notes:
            self._notes.append(note)
            logger.log(level, "%s", note)


def call_safely(plugin: Plugin, hook: str, **arguments: Any) -> None:
    """Call a hook and write what it raises to the log."""
    result = attempt(lambda: plugin.call(hook, **arguments))
    if isinstance(result, Failure):
        logger.warning("%r: %s raised", plugin, hook, exc_info=result.error)


def _check_name(name: str) -> None:
    if not is_backend_name(name):
        raise OptionError(
            f"register: the name {name!r} cannot stand in a device string; choose another"
        )


def tell(candidate: Candidate) -> None:
    """Log why a candidate cannot be used: a warning if its installation needs repair, else info."""
    if candidate.state.refused:
        level = logging.WARNING if candidate.state.broken else logging.INFO
        logger.log(
            level,
            "%s (%s) %s: %s",
            candidate.name or "metadata",
            candidate.distribution,
            candidate.state.value,
            candidate.reason,
        )
