"""The conformance kit on the emulated GPU of a Mac."""

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
        from Metal._machine import machine

        from tensorplug_metal.enumeration import devices

        machine.reset()
        (device,) = devices()
        with device:
            yield device
        assert machine.faults == []

    @pytest.fixture
    def spare_device(self, device: Device) -> Device:
        from tensorplug_metal.enumeration import devices

        (spare,) = devices()
        return spare

    def break_next_op(self, device: Device) -> bool:
        """Make Metal refuse the next command buffer, after which a stream goes on."""
        from Metal._machine import machine

        machine.no_buffers = 1
        return True
