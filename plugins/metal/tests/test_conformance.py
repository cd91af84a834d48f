"""The conformance kit on the emulated GPU of a Mac."""

import pytest

from tensorplug.device import Device
from tensorplug_emulator import missing
from tensorplug_testing.standins import StandInTests

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


class TestEmulated(StandInTests):
    """Every contract of a device, emulated."""

    stand_in = "Metal._machine"
    enumeration = "tensorplug_metal.enumeration"

    def break_next_op(self, device: Device) -> bool:
        """Make Metal refuse the next command buffer, after which a stream goes on."""
        self.machine().no_buffers = 1
        return True
