"""Options of streams, handed on by a device that joins several."""

import pytest

from tensorplug import meta
from tensorplug_emulator.suites.devices import OptionTests

OTHERS = {"command_buffers": 3, "concurrent": False, "indirect": False}
"""Values that are not the defaults."""


class TestOptions(OptionTests):
    """How launches are given to the GPU."""

    names = tuple(OTHERS)

    @pytest.fixture(params=names)
    def option(self, request):
        return request.param, OTHERS[request.param]


def test_meta_device_hands_on_command_buffers_that_were_set_after_a_stream_was_opened(device):
    with device.open() as given:
        given.command_buffers = 4
        with meta.device([given]) as both, both.open() as stream:
            assert stream.streams[0].command_buffers == 4
