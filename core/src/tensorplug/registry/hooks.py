"""The hooks a backend's plugin implements, checked and carried by pluggy.

A plugin is a module or an object with `api_version = (major, minor)` and functions marked with
`tensorplug.hookimpl`. A function may leave out arguments it does not need. Only
`tensorplug_devices` is required.
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
"""(major, minor) of this interface. A minor adds hooks or arguments, a major may change them."""

hookspec = pluggy.HookspecMarker("tensorplug")
hookimpl = pluggy.HookimplMarker("tensorplug")


@hookspec(firstresult=True)
def tensorplug_configure(name: str, environ: Mapping[str, str]) -> None:
    """Take the name the plugin is installed under and the environment variables to read. Since 0.1.

    Called once, before any other hook. Import no driver here.
    """


@hookspec(firstresult=True)
def tensorplug_score() -> "int | Refusal | None":
    """How well the plugin suits this machine, or a `Refusal` saying why it cannot run. Since 0.1.

    Among distributions that offer one name the highest score wins; without this hook it is 1.
    Import no driver here: it is called in programs that never use the plugin.
    """


@hookspec(firstresult=True)
def tensorplug_devices() -> "Sequence[Device] | None":
    """The devices of this machine, named `name:0`, `name:1`, ... Since 0.1.

    Called on first use, and once more after an `unload()`: return new objects. Drivers may be
    imported here. No devices means that the plugin cannot be used here.
    """


@hookspec(firstresult=True)
def tensorplug_features() -> "Mapping[str, str] | None":
    """What the plugin was built with and what it found, such as `{"avx2": "1"}`. Since 0.1."""


@hookspec(firstresult=True)
def tensorplug_extension(name: str) -> "object | None":
    """What `get_proc_address(backend, name)` returns, or None for an unknown name. Since 0.1."""


@hookspec(firstresult=True)
def tensorplug_unload() -> None:
    """Give back what the plugin holds; its devices are closed already. Since 0.1."""


@hookspec(firstresult=True)
def tensorplug_loaded(report: "Report") -> None:
    """Look at what a `load_all()` found. Since 0.1."""


class Plugin:
    """A plugin object whose hooks have been checked.

    Each has a plugin manager to itself: a call that reaches several plugins loses the answers of
    all when one of them raises.
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
        """A hook that nobody calls, and the known one nearest to it; None where all are known."""
        known = [name for name in globals() if name.startswith("tensorplug_")]
        for caller in self._manager.get_hookcallers(self.wrapped) or []:
            optional = all(impl.optionalhook for impl in caller.get_hookimpls())
            if not caller.has_spec() and not optional:
                return caller.name, difflib.get_close_matches(caller.name, known, n=1, cutoff=0)[0]
        return None

    def call(self, hook: str, **arguments: Any) -> Any:
        """What the plugin's `hook` returns, None without one; raises what the plugin raises."""
        return getattr(self._manager.hook, hook)(**arguments)

    def __repr__(self) -> str:
        what = (
            self.wrapped.__name__ if inspect.ismodule(self.wrapped) else type(self.wrapped).__name__
        )
        return f"<Plugin {what}, {', '.join(self.hooks) or 'no hooks'}>"
