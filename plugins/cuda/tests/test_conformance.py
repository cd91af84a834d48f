"""The conformance kit on the emulated GPU."""

from collections.abc import Iterator

import pytest

from tensorplug.device import Device
from tensorplug_emulator import missing
from tensorplug_testing.kit import DeviceTests

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


class TestEmulated(DeviceTests):
    """Every contract of a device, emulated."""

    graphs = 100

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls) -> Iterator[Device]:
        from cupy._machine import machine

        from tensorplug_cuda.enumeration import devices

        machine.reset()
        (device,) = devices()
        with device:
            yield device
        assert machine.faults == []

    @pytest.fixture
    def spare_device(self, device: Device) -> Device:
        from tensorplug_cuda.enumeration import devices

        (spare,) = devices()
        return spare

    def break_next_op(self, device: Device) -> bool:
        """Make the next launch fail for want of registers, after which a GPU goes on."""
        from cupy._machine import machine

        machine.failing = True
        return True
