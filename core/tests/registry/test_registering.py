"""What a program registers itself: plugins, devices and observers."""

import pytest

from tensorplug.errors import OptionError
from tensorplug.registry.candidate import State

from .kinds import Kind, names, plugin_of


def test_registering_twice_changes_nothing(registry):
    plugin = plugin_of(Kind("acme:0"))

    first = registry.register(plugin, "acme")
    second = registry.register(plugin, "acme")

    assert first == second
    assert names(registry.devices()) == ["acme:0"]


def test_a_second_plugin_under_a_registered_name_is_refused(registry):
    registry.register(plugin_of(Kind("acme:0")), "acme")

    with pytest.raises(OptionError) as caught:
        registry.register(plugin_of(Kind("acme:0")), "acme")

    assert str(caught.value) == "register acme: the program has registered another acme"


def test_registering_again_brings_back_what_was_unloaded(registry):
    plugin = plugin_of(Kind("acme:0"))
    registry.register(plugin, "acme")
    registry.unload("acme")

    assert registry.register(plugin, "acme").state is State.AVAILABLE


@pytest.mark.parametrize("name", ["gpu", "my gpu", ""])
def test_a_program_cannot_register_a_name_that_device_strings_do_not_take(registry, name):
    text = f"register: the name {name!r} cannot stand in a device string; choose another"

    for register in (
        lambda: registry.register(plugin_of(), name),
        lambda: registry.register_device(Kind(f"{name}:0")),
    ):
        with pytest.raises(OptionError) as caught:
            register()

        assert str(caught.value) == text


def test_a_registered_plugin_survives_a_refresh(registry):
    registry.register(plugin_of(Kind("acme:0")), "acme")
    device = registry.device("acme")

    registry.refresh()

    assert registry.device("acme") is device


def test_a_device_can_be_registered_alone_and_only_once(registry):
    device = Kind("acme:0")

    registry.register_device(device)
    registry.register_device(device)

    assert registry.devices() == (device,)
    assert registry.device("acme") is device


def test_a_device_joins_those_of_its_backend(registry):
    registry.register(plugin_of(Kind("acme:0")), "acme")

    registry.register_device(Kind("acme:7"))

    assert names(registry.devices()) == ["acme:0", "acme:7"]
    assert registry.device("acme:7").name == "acme:7"


def test_two_devices_of_one_name_are_refused(registry):
    registry.register_device(Kind("acme:0"))

    with pytest.raises(OptionError) as caught:
        registry.register_device(Kind("acme:0"))

    assert str(caught.value) == ("register <Kind acme:0>: there is another acme:0; rename it")


def test_device_takes_the_place_of_one_that_was_lost(registry):
    lost, later = Kind("acme:0"), Kind("acme:0")
    registry.register(plugin_of(lost, Kind("acme:1")), "acme")
    with pytest.raises(OptionError, match="is not listed"):
        registry.replace_device(lost, later)

    registry.devices()
    registry.replace_device(lost, later)

    assert registry.device("acme:0") is later
    assert names(registry.devices()) == ["acme:0", "acme:1"]


def test_observers_and_plugins_hear_of_every_report(registry):
    told = []
    registry.observe(plugin_of(extra={"tensorplug_loaded": lambda: told.append("observer")}))

    def hear(report):
        told.append(report)

    extra = {"tensorplug_loaded": hear}
    registry.register(plugin_of(Kind("acme:0"), extra=extra), "acme")

    report = registry.load_all()

    assert told == [report, "observer"]


def test_an_observer_that_raises_is_logged_and_no_more(registry, caplog):
    def raises(report):
        raise ValueError("no")

    registry.observe(plugin_of(extra={"tensorplug_loaded": raises}))

    assert registry.load_all().candidates == ()
    assert caplog.messages == [
        "<Plugin SimpleNamespace, tensorplug_devices, tensorplug_loaded, "
        "tensorplug_score>: tensorplug_loaded raised"
    ]
