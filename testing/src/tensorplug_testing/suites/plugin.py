"""`PluginTests`: the entry point of the device's distribution imports no heavy packages."""

import json
import subprocess
import sys

import pytest

from tensorplug.device import Device
from tensorplug.registry.candidate import Candidate
from tensorplug.registry.discovery import discover

LIGHT = frozenset(
    {"tensorplug", "numpy", "pluggy", "importlib_metadata", "packaging", "typer", "zipp"}
    | {"tensorplug_testing"}  # plugins of tests offer its fake devices
)
"""Packages that core imports or requires, and the kit."""
TIMEOUT = 120.0

_CHILD = """
import json, sys, time
sys.path[:] = json.loads(sys.argv[1])
import tensorplug, tensorplug.registry, tensorplug.registry.discovery
before = set(sys.modules)
start = time.perf_counter()
plugin = sys.argv[2]
module = __import__(plugin, fromlist=["x"])
score = getattr(module, "tensorplug_score", None)
if score is not None:
    score()
seconds = time.perf_counter() - start
loaded = {}
for name in set(sys.modules) - before:
    top = name.partition(".")[0]
    loaded[top] = loaded.get(top, 0) + 1
print(json.dumps({"seconds": seconds, "loaded": loaded}))
"""


class PluginTests:
    """The entry point is light, because programs that never use the backend import it too."""

    def test_score_loads_nothing_but_the_plugin(self, device: Device) -> None:
        plugin = _plugin_of(device)

        heavy = heavy_imports(plugin)

        assert not heavy, (
            f"{plugin}: to import it and to call tensorplug_score() {heavy}; look for the driver "
            "without loading it (importlib.util.find_spec), and import it in tensorplug_devices()"
        )


def _plugin_of(device: Device) -> str:
    """The module that the entry point of the device's distribution names; skips without one."""
    name, package = device.name.partition(":")[0], type(device).__module__.partition(".")[0]
    offered = [c for c in discover() if c.name == name and not c.state.broken]
    mine = [c for c in offered if _module(c).partition(".")[0] == package]
    if not mine:
        pytest.skip(f"{device.name}: no installed entry point {name} in the package {package}")
    return _module(mine[0])


def _module(candidate: Candidate) -> str:
    return candidate.value.partition(":")[0].strip()


def heavy_imports(plugin: str) -> str:
    """The packages that a new interpreter loads to import `plugin` and call its score, in words.

    Modules of Python, of core and its requirements, of the plugin's own package and of packages
    with backends do not count. Empty if there are no others.
    """
    command = [sys.executable, "-c", _CHILD, json.dumps(sys.path), plugin]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or ["no words"]
        return f"ends a fresh interpreter with status {ended.returncode}: {lines[-1]}"
    told = json.loads(ended.stdout.splitlines()[-1])
    light = {plugin.partition(".")[0], *LIGHT, *sys.stdlib_module_names}
    light |= {_module(candidate).partition(".")[0] for candidate in discover()}
    heavy = {package: n for package, n in told["loaded"].items() if package not in light}
    if not heavy:
        return ""
    listed = ", ".join(f"{package} ({count} modules)" for package, count in sorted(heavy.items()))
    return f"loads {listed} in {told['seconds']:.1f} s"
