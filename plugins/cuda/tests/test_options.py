"""Options of streams, handed on by a device that joins several; emulated."""

import pytest

from tensorplug import meta
from tensorplug_cuda.device import CudaDevice
from tensorplug_emulator import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

NAMES = ("stream", "streams")


def test_each_option_is_named_here():
    assert {option.name for option in CudaDevice.options} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_meta_device_opens_streams_with_the_options_of_its_streams(device, stream, name):
    value = {"stream": stream.stream.ptr, "streams": 3}[name]
    with (
        device.open(**{name: value}) as given,
        meta.device([given]) as both,
        both.open() as joined,
    ):
        assert joined.streams[0].options == {**device.parse_options({}), name: value}
