"""A registry: where its devices come from, values that mean nothing, threads, nested calls."""

import threading

import pytest

import tensorplug as tp
from tensorplug.device import DeviceType
from tensorplug.errors import BackendUnavailable, OptionError
from tensorplug_testing.distributions import plugin_source

from .kinds import Kind, names, plugin_of

# --- where devices come from ------------------------------------------------------------------


def test_device_knows_the_entry_of_the_registry_that_it_came_from(registry):
    candidate = registry.register(plugin_of(Kind("acme:0"), Kind("acme:1")), "acme")
    registry.register_device(Kind("lone:0"))

    found = {d.name: (d.candidate.name, d.candidate.distribution) for d in registry.devices()}

    assert found == {
        "acme:0": ("acme", candidate.distribution),
        "acme:1": ("acme", candidate.distribution),
        "lone:0": ("lone", "this-program"),
    }
    assert Kind("other:0").candidate is None


# --- values that mean nothing -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cpu", "gpu", 0, 1, None, DeviceType], ids=repr)
@pytest.mark.parametrize("ask", ["devices", "hardware", "open_by_type"])
def test_device_type_that_is_none_is_refused(registry, ask, kind):
    registry.register_device(Kind("acme:0"))

    with pytest.raises(OptionError) as caught:
        getattr(registry, ask)(kind)

    assert str(caught.value) == (
        f"{ask}: {kind!r} is not a device type; give one of DeviceType.GPU, DeviceType.IGPU, "
        "DeviceType.ACCEL, DeviceType.CPU, DeviceType.META, or call devices_of() with the "
        "name of a backend"
    )


# --- threads and nesting ----------------------------------------------------------------------


def test_many_threads_load_once_and_see_the_same_devices(shelf):
    shelf.add("acme-gpu", "import time; time.sleep(0.05)\n" + plugin_source())
    registry = shelf.registry()
    gate = threading.Barrier(8)
    seen = []

    def look():
        gate.wait()
        seen.append(registry.devices())

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(seen)) == 1
    assert names(seen[0]) == ["acme:0"]


def test_a_plugin_may_ask_for_the_devices_of_others_but_sees_none_of_its_own(registry):
    seen = []

    def gather():
        seen.extend(registry.devices())
        return [Kind("both:0")]

    registry.register(plugin_of(extra={"tensorplug_devices": gather}), "both")
    registry.register(plugin_of(Kind("acme:0")), "acme")

    devices = registry.devices()

    assert names(seen) == ["acme:0"]
    assert names(devices) == ["acme:0", "both:0"]


def test_a_plugin_that_asks_for_itself_fails_and_does_not_hang(registry):
    def ask_for_itself():
        return [registry.device("me")]

    registry.register(plugin_of(extra={"tensorplug_devices": ask_for_itself}), "me")

    with pytest.raises(BackendUnavailable, match="me: its plugin asks for itself while it is"):
        registry.device("me")


def test_the_module_functions_are_those_of_one_registry():
    owners = {getattr(tp, name).__self__ for name in ("load_all", "open", "devices", "unload")}

    assert len(owners) == 1
