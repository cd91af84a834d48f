"""Options of streams, handed on by a device that joins several."""

import pytest

from tensorplug import meta
from tensorplug_metal.device import MetalDevice

OTHERS = {"command_buffers": 3, "concurrent": False, "indirect": False}


def test_each_option_has_another_value_here():
    assert set(OTHERS) == {option.name for option in MetalDevice.options}


@pytest.mark.parametrize("name", OTHERS)
def test_meta_device_opens_streams_with_the_options_of_its_streams(device, name):
    with (
        device.open(**{name: OTHERS[name]}) as given,
        meta.device([given]) as both,
        both.open() as stream,
    ):
        assert stream.streams[0].options == {**device.parse_options({}), name: OTHERS[name]}


def test_meta_device_hands_on_what_was_set_on_a_stream_after_it_was_opened(device):
    with device.open() as given:
        given.command_buffers = 4
        with meta.device([given]) as both, both.open() as stream:
            assert stream.streams[0].command_buffers == 4
