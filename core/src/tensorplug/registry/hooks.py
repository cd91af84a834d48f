"""The hooks that a backend's plugin implements; pluggy checks and calls them.

A plugin is a module or an object with `api_version = (major, minor)` and functions marked with
`tensorplug.hookimpl`. A function may leave out arguments it does not need. Only
`tensorplug_devices` is required.

>>> class Plugin:
...     api_version = (0, 1)
...
...     @tp.hookimpl
...     def tensorplug_devices(self):
...         return [tp.device("cpu")]
>>> tp.Registry().register(Plugin(), "acme").name
'acme'
"""

import difflib
import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from tensorplug.device.device import Device
from tensorplug.errors import Refusal

if TYPE_CHECKING:
    from tensorplug.registry.report import Report

API_VERSION = (0, 1)
"""(major, minor) of this interface. A new minor version adds hooks or arguments; a new major
version may change or remove them."""

hookspec = pluggy.HookspecMarker("tensorplug")
hookimpl = pluggy.HookimplMarker("tensorplug")


@hookspec(firstresult=True)
def tensorplug_configure(name: str, environ: Mapping[str, str]) -> None:
    """Receive the plugin's installed name and the environment variables. Since 0.1.

    Called once, before any other hook. The implementation must not import a driver.
    """


@hookspec(firstresult=True)
def tensorplug_score() -> "int | Refusal | None":
    """Return how well the plugin suits this machine, or a `Refusal` if it cannot run. Since 0.1.

    Among distributions that offer one name, the highest score wins. The score of a plugin without
    this hook is 1. The implementation must not import a driver, because the hook is called in
    programs that never use the plugin.
    """


@hookspec(firstresult=True)
def tensorplug_devices() -> "Sequence[Device] | None":
    """Return the devices of this machine, named `name:0`, `name:1`, ... Since 0.1.

    Called on first use, and again after an `unload()`: the implementation must return new objects.
    It may import drivers. An empty sequence means that the plugin is unsupported on this machine.
    """


@hookspec(firstresult=True)
def tensorplug_features() -> "Mapping[str, str] | None":
    """Return build options and detected features, such as `{"avx2": "1"}`. Since 0.1."""


@hookspec(firstresult=True)
def tensorplug_extension(name: str) -> "object | None":
    """Return the result of `get_proc_address(backend, name)`; None if unknown. Since 0.1."""


@hookspec(firstresult=True)
def tensorplug_unload() -> None:
    """Release the plugin's resources; its devices are closed already. Since 0.1."""


@hookspec(firstresult=True)
def tensorplug_loaded(report: "Report") -> None:
    """Receive the report of a `load_all()`. Since 0.1."""


class Plugin:
    """A plugin object registered with pluggy, which checks its hooks.

    Each Plugin has its own plugin manager: in a pluggy call that reaches several plugins, one that
    raises loses the results of all.
    """

    def __init__(self, name: str, wrapped: object) -> None:
        self.wrapped = wrapped
        self._manager = pluggy.PluginManager("tensorplug")
        self._manager.add_hookspecs(sys.modules[__name__])
        self._manager.register(wrapped, name)

    @property
    def hooks(self) -> list[str]:
        """Names of the hooks that the plugin implements."""
        callers = self._manager.get_hookcallers(self.wrapped) or []
        return sorted(caller.name for caller in callers)

    @property
    def unknown_hook(self) -> tuple[str, str] | None:
        """An unknown hook and the known hook with the most similar name; None if all are known."""
        known = [name for name in globals() if name.startswith("tensorplug_")]
        for caller in self._manager.get_hookcallers(self.wrapped) or []:
            optional = all(impl.optionalhook for impl in caller.get_hookimpls())
            if not caller.has_spec() and not optional:
                return caller.name, difflib.get_close_matches(caller.name, known, n=1, cutoff=0)[0]
        return None

    def call(self, hook: str, **arguments: Any) -> Any:
        """Call the plugin's `hook`: its result, or None without the hook. Raises what it raises."""
        return getattr(self._manager.hook, hook)(**arguments)

    def __repr__(self) -> str:
        what = (
            self.wrapped.__name__ if inspect.ismodule(self.wrapped) else type(self.wrapped).__name__
        )
        return f"<Plugin {what}, {', '.join(self.hooks) or 'no hooks'}>"
