"""The whole conformance kit on the devices of every OpenCL driver that is installed here."""

from collections.abc import Iterator

import pytest

from tensorplug.testing.kit import DeviceTests
from tensorplug_opencl.device import OpenCLDevice


class TestOpenCL(DeviceTests):
    """Every contract of a device."""

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls, driver) -> Iterator[OpenCLDevice]:
        with OpenCLDevice("opencl:0", driver) as device:
            yield device
