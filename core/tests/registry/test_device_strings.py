"""Device strings: which device, and which options, they mean."""

import pytest

from tensorplug.device import DeviceType
from tensorplug.errors import BackendNotFound, OptionError

from .kinds import Kind, plugin_of


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("acme", "Acme:0"),
        ("ACME:0", "Acme:0"),
        ("acme:1", "Acme:1"),
        ("gpu", "Acme:0"),
        ("gpu:1", "Acme:1"),
        ("gpu:2", "slow:0"),
        ("igpu", "slow:0"),
        ("accel", "slow:1"),
        ("cpu", "slow:2"),
        ("best", "Acme:0"),
        ("pci:c1:00.0", "Acme:1"),
        ("pci:0000:C1:00.0", "Acme:1"),
        ("uuid:gpu-77", "slow:0"),
    ],
)
def test_a_device_string_finds_its_device(registry, spec, name):
    registry.register(
        plugin_of(
            Kind("slow:0", DeviceType.IGPU, address="GPU-77"),
            Kind("slow:1", DeviceType.ACCEL),
            Kind("slow:2", DeviceType.CPU),
        ),
        "slow",
    )
    registry.register(
        plugin_of(Kind("Acme:0", free=2 << 30), Kind("Acme:1", address="0000:C1:00.0")), "Acme"
    )

    assert registry.device(spec).name == name


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("acme:1", "acme:1: acme has 1 device: acme:0"),
        ("acme:x", "acme:x: acme has 1 device: acme:0"),
        ("gpu:5", "gpu:5: gpu has 1 device: acme:0"),
        ("igpu", "igpu: no device of this kind; devices: acme:0"),
        ("acm", "acm: no installed backend has this name; did you mean 'acme'?"),
        (
            "acme@elsewhere",
            "acme@elsewhere: this distribution offers no acme; installed: acme@this-program",
        ),
    ],
)
def test_a_device_string_that_misses_says_what_there_is(registry, spec, text):
    registry.register(plugin_of(Kind("acme:0")), "acme")

    with pytest.raises(BackendNotFound) as caught:
        registry.device(spec)

    assert str(caught.value) == text


def test_a_device_may_have_a_name_that_is_no_index(registry):
    registry.register(plugin_of(Kind("far:host:50/acme:0"), Kind("far:host:50/acme:1")), "far")

    assert registry.device("far:HOST:50/acme:1").name == "far:host:50/acme:1"


def test_a_backend_named_like_a_kind_comes_before_the_kind(registry):
    registry.register(plugin_of(Kind("other:0", DeviceType.CPU)), "other")
    registry.register(plugin_of(Kind("cpu:0", DeviceType.CPU, free=1)), "cpu")

    assert registry.device("cpu").name == "cpu:0"


def test_options_of_the_call_stand_above_those_of_the_string(registry):
    device = Kind("acme:0")
    registry.register(plugin_of(device), "acme")

    with registry.open("acme?threads=2"):
        string = device.opened_with
    with registry.open("acme?threads=2", threads=3):
        both = device.opened_with

    assert (string, both) == ({"threads": 2}, {"threads": 3})


def test_an_unknown_option_names_the_known_ones(registry):
    registry.register(plugin_of(Kind("acme:0")), "acme")

    with pytest.raises(OptionError) as caught:
        registry.open("acme?speed=9")

    assert str(caught.value) == "acme:0: unknown option 'speed'; known options: threads"


def test_options_mean_nothing_to_a_device(registry):
    with pytest.raises(OptionError) as caught:
        registry.device("acme?threads=2")

    assert str(caught.value) == (
        "device 'acme?threads=2': options belong to open(), not to a device"
    )


@pytest.mark.parametrize(
    ("text", "name", "threads"),
    [("ACME", "acme:0", 4), ("acme:1", "acme:1", 4), ("acme:threads=2", "acme:0", 2)],
)
def test_the_old_form_opens_too(registry, text, name, threads):
    registry.register(plugin_of(Kind("acme:0"), Kind("acme:1")), "acme")

    with registry.init_backend_from_str(text) as backend:
        opened = backend.device

    assert (opened.name, opened.opened_with) == (name, {"threads": threads})
