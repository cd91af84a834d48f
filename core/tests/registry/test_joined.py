"""Device strings of several devices as one: `meta:a+b`."""

import re

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import DeviceType
from tensorplug.errors import (
    BackendNotFound,
    OptionError,
)
from tensorplug_testing.distributions import plugin_source


@pytest.fixture
def pair(shelf):
    """A registry with two fake devices in host memory."""
    made = ("NullDevice('acme:0', host=True)", "NullDevice('acme:1', host=True)")
    shelf.add("acme-gpu", plugin_source(devices=f"return [{', '.join(made)}]"))
    return shelf.registry()


def test_a_device_string_makes_one_device_of_several(pair):
    device = pair.device("meta:acme:0+acme:1")

    assert device.name == "meta(acme:0+acme:1)"
    assert device.type is DeviceType.META
    assert pair.device("META:acme+ACME:1") is not pair.device("meta:acme:1+acme:0")
    assert pair.device("meta:acme:0+acme:1") is device
    with pair.open("meta:acme:0+acme:1") as backend:
        assert backend.device is device


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ("", "axis 1: 4+4"),
        ("?ratio=3,1", "axis 1: 6+2"),
        ("?split=columns&ratio=1,3", "axis 0: 4+12"),
        ("?split=mirrored", "mirrored"),
    ],
)
def test_a_device_of_several_cuts_as_its_string_says(pair, options, state):
    device = pair.device(f"meta:acme:0+acme:1{options}")

    assert str(device.partition_of(tp.input("w", (8, 16), tp.F32).named("w"))) == "mirrored"
    with device.open() as backend:
        weight = backend.place("w", np.ones((8, 16), np.float32))
        assert str(device.partition_of(weight)) == state
        weight.place.buffer.close()


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("meta:acme:0+", OptionError, "a device is missing next to a +; write meta:cpu+opencl:0"),
        ("meta:acme:0+acne:1", BackendNotFound, "did you mean 'acme'?"),
        ("meta:acme:0+acme:7", BackendNotFound, "acme has 2 devices"),
        ("meta:acme:0+acme:1?splt=rows", OptionError, "no option 'splt'; it takes split and ratio"),
        ("meta:acme:0+acme:1?split=row", OptionError, "unknown policy 'row'; did you mean 'rows'"),
        ("meta:acme:0+acme:1?ratio=a", OptionError, "ratio=a is not a list of numbers such as 3,1"),
        ("meta:acme:0+acme:1?ratio=1", OptionError, "give one part for each"),
    ],
)
def test_a_string_that_joins_nothing_says_why(pair, text, error, sentence):
    with pytest.raises(error, match=re.escape(sentence)):
        pair.open(text)


def test_devices_that_were_loaded_again_are_joined_again(pair):
    before = pair.device("meta:acme:0+acme:1")
    pair.unload("acme")
    pair.load("acme")

    after = pair.device("meta:acme:0+acme:1")

    assert after is not before
    assert not any(device.closed for device in after.devices)
